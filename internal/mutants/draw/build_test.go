package main

import (
	"slices"
	"strings"
	"testing"
)

// A package that is missing has no mutants, and nothing else shows it.
func TestPackages_HaveAllOfTheLibrary(t *testing.T) {
	const module = "github.com/go-coord/coord"
	without := []string{"internal/hook", "trace"} // hooks of tests, and declarations
	out, err := goTool(t.Context(), "../../..", "list", "-deps", ".")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ours := 0
	for path := range strings.FieldsSeq(string(out)) {
		pkg, ok := strings.CutPrefix(path, module+"/")
		if !ok {
			continue
		}
		ours++
		if !slices.Contains(packages, pkg) && !slices.Contains(without, pkg) {
			t.Errorf("package coord imports %s, which is not in packages", pkg)
		}
	}
	if ours == 0 {
		t.Errorf("no package of the module in %q", out)
	}
}
