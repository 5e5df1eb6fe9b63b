// Package nodeconfig is the configuration of a node: two files that it reads
// and the status document that it answers with.
//
// node.yaml is static: what the node is, serves and takes data from. A change
// of it needs a restart. wiring.yaml is reloaded while the node runs: for each
// fan-out source the candidate parents in order of preference, and the policy
// by which the node itself chooses among them. Statusz is the JSON document at
// /statusz, which controllers and tools read.
//
// Parsing is strict: an unknown field, a wrong type, a missing or an
// out-of-range value each is a Problem that names the file, the line, the field
// and how to mend it, and all of them are reported at once. What parses is
// complete: SetDefaults is the one place where defaults are. Parsing what
// Marshal wrote gives the same value.
//
// Limits: no secret is ever in these files, only the paths of files that hold
// one; a file of more than 1 MiB is refused; YAML aliases are not supported.
package nodeconfig
