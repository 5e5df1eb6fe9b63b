package nodeconfig_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func TestArchiveProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ doc, want string }{
		"nothing": {"archives:\n  - {}\n", `
node.yaml:19: archives[0].store must not be "": use local or s3
node.yaml:19: archives[0].tables is empty: give at least 1`},
		"local": {"archives:\n  - store: local\n    storeConfig: {bucket: b, credentials: {}}\n    formats: [csv, jsonl, jsonl]\n    keyPrefix: /a\n    group: true\n", `
node.yaml:20: archives[0].storeConfig.path is missing: give it a value
node.yaml:20: archives[0].storeConfig.bucket is of a store in a bucket only: take it out, or set store to s3
node.yaml:20: archives[0].storeConfig.credentials is of a store in a bucket only: take it out, or set store to s3
node.yaml:21: archives[0].formats[0] must not be "csv": use protobuf or jsonl or jsonl.zst
node.yaml:21: archives[0].formats[2] "jsonl" is also at archives[0].formats[1]: use each once
node.yaml:22: archives[0].keyPrefix must not be "/a": write names with a slash after each, such as shop/public.orders/, as the archive's writer has it`},
		"s3": {"archives:\n  - store: s3\n    storeConfig: {bucket: b/c, endpoint: 'minio:9000', kmsKey: k, credentials: {accessKeyFile: /a, profile: p, externalID: x}}\n    tables: [{schema: s, name: a}, {schema: s, name: b}]\n", `
node.yaml:20: archives[0].storeConfig.bucket must not be "b/c": write its name alone; what follows a slash is the prefix
node.yaml:20: archives[0].storeConfig.endpoint must not be "minio:9000": write an address that starts with https:// or http://
node.yaml:20: archives[0].storeConfig.kmsKey is set, and encryption is not aws:kms: set encryption to aws:kms, or take the key out
node.yaml:20: archives[0].storeConfig.credentials has one of accessKeyFile and secretKeyFile: give both: neither is of use alone
node.yaml:20: archives[0].storeConfig.credentials.profile is set, and so is accessKeyFile: keep one of them
node.yaml:20: archives[0].storeConfig.credentials.externalID is set, and roleARN is not: name the role that is to be assumed
node.yaml:21: archives[0].tables has 2 items, and one prefix is of one table: set group to true, so that each has a prefix of its own below keyPrefix`},
		"twice": {"archives:\n  - &a {store: local, storeConfig: {path: /a}, tables: [{schema: s, name: a}]}\n  - {store: local, storeConfig: {path: /a}, tables: [{schema: s, name: a}]}\n", `
node.yaml:20: archives[1].tables[0] s.a is also in archives[0]: keep one archive for each table`},
		"source": {"  - name: x\n    archive: {store: local, storeConfig: {path: /a}, tables: [], comparator: alphabet, pollInterval: 1s}\n", `
node.yaml:19: sources[1].archive.tables is empty: give at least 1
node.yaml:19: sources[1].archive.comparator must not be "alphabet": use lsn or number or bytes
node.yaml:19: sources[1].archive.pollInterval is set, and follow is not: set follow to true, or take it out`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := nodeconfig.Parse("node.yaml", []byte(root+c.doc))
			if err == nil {
				t.Fatal("parsed")
			}
			if d := cmp.Diff(strings.TrimSpace(c.want), err.Error()); d != "" {
				t.Error(d)
			}
		})
	}
}

// Prefixes and state files of a group are derived, and no two tables share one.
func TestTableKeys(t *testing.T) {
	t.Parallel()
	for table, want := range map[nodeconfig.Table]string{
		{Schema: "public", Name: "orders"}:    "public.orders",
		{Schema: "a", Name: "b.c"}:            "a.b%2Ec",
		{Schema: "a.b", Name: "c"}:            "a%2Eb.c",
		{Schema: "p", Name: "Order Lines"}:    "p.Order%20Lines",
		{Schema: "p", Name: "a/b\\c%\n"}:      "p.a%2Fb%5Cc%25%0A",
		{Schema: "päd", Name: "表"}:            "päd.表",
		{Schema: "p", Name: "a\u00a0\u200bb"}: "p.a%C2%A0%E2%80%8Bb",
		// The longest that there are.
		{Schema: strings.Repeat("x", 63), Name: strings.Repeat("é", 31)}: strings.Repeat("x", 63) + "." + strings.Repeat("é", 31),
		{Schema: strings.Repeat(".", 63), Name: strings.Repeat(".", 63)}: strings.Repeat("%2E", 58) + "%~161f26d66167ca62107a6314",
	} {
		if got := nodeconfig.TableKey(table); got != want {
			t.Errorf("%q: %q, want %q", table, got, want)
		}
	}
	orders := nodeconfig.Table{Schema: "public", Name: "orders"}
	s := nodeconfig.ArchiveSource{StatePath: "/var/state"}
	for prefix, want := range map[string][2]string{"": {"", "public.orders/"}, "a": {"a/", "a/public.orders/"}, "a/": {"a/", "a/public.orders/"}, "x/{table}-1/": {"x/{table}-1/", "x/orders-1/"}} {
		s.KeyPrefix, s.Group = prefix, false
		if got := s.Prefix(orders); got != want[0] || s.StateFile(orders) != "/var/state" {
			t.Errorf("%q alone: %q, %q", prefix, got, s.StateFile(orders))
		}
		s.Group = true
		if got := s.Prefix(orders); got != want[1] || s.StateFile(orders) != "/var/state.public.orders" {
			t.Errorf("%q in a group: %q, %q", prefix, got, s.StateFile(orders))
		}
	}
}
