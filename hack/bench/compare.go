package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// worse is how much of a ratio may be lost before it is a regression.
const worse = 0.10

// compareRuns compares two results files. It names every ratio that is worse in
// the newer one, and fails if there is any.
func compareRuns(before, after string) error {
	old, err := readResults(before)
	if err != nil {
		return err
	}
	fresh, err := readResults(after)
	if err != nil {
		return err
	}
	if old.Machine != fresh.Machine {
		fmt.Printf("The runs are of different machines: %s, and %s.\n", old.Machine, fresh.Machine)
	}
	var lost []string
	for _, name := range slices.Sorted(maps.Keys(fresh.Measures)) {
		m, was := fresh.Measures[name], old.Measures[name]
		if was.Ratio == 0 {
			fmt.Printf("%-32s %8.3f            new\n", name, m.Ratio)
			continue
		}
		change := m.Ratio/was.Ratio - 1
		note := ""
		if m.Lower && change > worse || !m.Lower && change < -worse {
			note = "  WORSE"
			lost = append(lost, name)
		}
		fmt.Printf("%-32s %8.3f  %8.3f  %+6.1f %%%s\n", name, was.Ratio, m.Ratio, 100*change, note)
	}
	for name := range old.Measures {
		if _, ok := fresh.Measures[name]; !ok {
			lost = append(lost, name+" (not measured)")
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("more than %.0f %% worse than in %s: %s", 100*worse, before, strings.Join(lost, ", "))
	}
	return nil
}

func readResults(path string) (*results, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s is not a file of results: %w", path, err)
	}
	return r, nil
}
