// Package nodeconfig is the configuration of a node: two files that it reads
// and the status document that it answers with.
//
// node.yaml is what the node is, serves and takes data from. A change of it needs
// a restart, but for the tables of PostgreSQL sources: these are taken up by a node
// that runs (Config.Fixed). wiring.yaml is reloaded while the node runs: for each
// fan-out source the candidate parents in order of preference, and the policy
// by which the node itself chooses among them. Statusz is the JSON document at
// /statusz, which controllers and tools read.
//
// node.yaml may also be written in HOCON, in a file that ends in .conf or .hocon: then
// names may have underscores, and there is some more that it may have, as
// docs/hocon.md says.
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
