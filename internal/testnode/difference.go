package testnode

import (
	"fmt"
	"slices"
	"strings"
)

// Difference shows the first rows that one of two sorted lists has and the other
// lacks, for a test that finds them different: got is of a node or its reader,
// want is the source's.
func Difference(got, want []string) string {
	var b strings.Builder
	show := func(mark string, a, not []string) {
		n := 0
		for _, r := range a {
			if _, found := slices.BinarySearch(not, r); !found && n < 5 {
				n++
				fmt.Fprintf(&b, "%s %.300s\n", mark, r)
			}
		}
	}
	show("only here:", got, want)
	show("only at the source:", want, got)
	return b.String()
}
