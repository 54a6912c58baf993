package mutants

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// places returns the places of mutants.
func places(t *testing.T, rows []mutant) (all []*place) {
	t.Helper()
	r, err := here()
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		p, err := r.place(&rows[i])
		if err == nil {
			p.folder, err = r.folder(&rows[i])
		}
		if err != nil {
			t.Error(err)
			continue
		}
		all = append(all, p)
	}
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// Each row of the list fits the source, and names a test that exists.
func TestTheListIsTrue(t *testing.T) {
	if len(list) < 12 {
		t.Errorf("only %d mutants", len(list))
	}
	named := make(map[string]bool)
	for _, p := range places(t, list) {
		if named[p.name] {
			t.Errorf("%s: twice", p.name)
		}
		named[p.name] = true
	}
}

// Each defect makes its test fail, which passes without it. The short form tries two in small
// packages, since each package costs a build.
func TestEachMutantIsCaught(t *testing.T) {
	chosen := places(t, list)
	if os.Getenv("COORD_LONG") == "" {
		chosen = []*place{chosen[1], chosen[len(chosen)-1]}
	}
	all := newVariant(t, together(chosen))
	var tried, alone atomic.Int32 // tried: fewer than chosen when -run picks some
	t.Cleanup(func() {
		t.Logf("figure: %d of %d mutants tried, all caught: %t; %d in a build of their own", tried.Load(), len(list), !t.Failed(), alone.Load())
	})
	for _, p := range chosen {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			tried.Add(1)
			without := all.control(t, p)
			missed := "it is not in that build"
			if p.number > 0 {
				missed = p.missed(all.run(t, p, p.number, without.limit()), without)
			}
			if missed != "" {
				// By itself it is judged as the change of the source that it is.
				alone.Add(1)
				missed = p.missed(newVariant(t, map[string]string{p.file: p.changed()}).run(t, p, 0, without.limit()), without)
			}
			if missed != "" {
				t.Error(missed)
			}
		})
	}
}

// missed says why the outcomes of a mutant's test with and without the defect do not show that
// the test detects it, if they do not.
func (p *place) missed(with, without outcome) string {
	test := p.pattern()[0]
	switch {
	case without.err != nil:
		return fmt.Sprintf("%s fails without the defect: %v\n%s", test, without.err, tail(without.out))
	case strings.Contains(with.out, noReturn):
		return noReturn
	case with.err == nil:
		return fmt.Sprintf("%s does not detect it:\n%s", test, tail(with.out))
	case !strings.Contains(with.out, test) && !strings.Contains("\n"+with.out, "\npanic: "):
		return fmt.Sprintf("another test failed than %s:\n%s", test, tail(with.out))
	}
	return ""
}

// pattern returns the names of the mutant's test and its subtests.
func (p *place) pattern() []string {
	names := strings.Split(p.test, "/")
	names[0] = names[0][strings.LastIndexByte(names[0], '.')+1:]
	return names
}

func tail(out string) string { return out[max(0, len(out)-2000):] }
