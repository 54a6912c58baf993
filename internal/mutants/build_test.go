package mutants

import (
	"maps"
	"os"
	"path"
	"slices"
	"testing"
)

// Each defect compiles. Those that TestEachMutantIsCaught puts into one build are compiled in it.
func TestEachMutantBuilds(t *testing.T) {
	folders := make(map[string]bool)
	build := func(what string, texts map[string]string, folders ...string) {
		args := append([]string{"build", "-buildvcs=false", "-o", os.DevNull, "-overlay", newVariant(t, texts).overlay}, folders...)
		if out, err := goCommand(t, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
	all := places(t, list)
	texts := together(all)
	for _, p := range all {
		folder := "./" + path.Dir(p.file)
		if folders[folder] = true; p.number == 0 {
			build(p.name, map[string]string{p.file: p.changed()}, folder)
		}
	}
	build("all others", texts, slices.Sorted(maps.Keys(folders))...)
}
