package mutants

import (
	"fmt"
	"go/build"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/go-coord/coord"
)

// apply returns the text of the file with the defect.
func (m *mutant) apply(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		t.Fatalf("%s: the text that %q replaces occurs %d times", m.file, m.name, n)
	}
	return strings.Replace(string(text), m.old, m.new, 1)
}

// Each entry of the list fits the source and names a test that exists.
func TestTheListIsTrue(t *testing.T) {
	if len(list) < 12 {
		t.Errorf("only %d mutants", len(list))
	}
	there := make(map[string]string) // the sources of the tests of a package
	named := make(map[string]bool)
	for _, m := range list {
		if named[m.name] {
			t.Errorf("%s: twice", m.name)
		}
		named[m.name] = true
		pkg, test := m.where()
		if there[pkg] == "" {
			there[pkg] = testsOf(t, pkg)
		}
		_, sub, _ := strings.Cut(m.test, test+"/")
		method, _, _ := strings.Cut(sub, "/")
		if m.apply(t) == "" || !strings.Contains(there[pkg], "\nfunc "+test+"(t *testing.T)") ||
			strings.HasPrefix(m.test, inRecipes) && !strings.Contains(test, "_") && method != "" && !strings.Contains(there[pkg], "Tests) "+method+"(t *testing.T)") {
			t.Errorf("%s: there is no %s in %s", m.name, m.test, pkg)
		}
	}
}

// testsOf returns the sources of a package and of all tests that go test runs in it.
func testsOf(t *testing.T, pkg string) string {
	t.Helper()
	dir := filepath.Join(root, strings.TrimPrefix(pkg, module))
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Each defect makes its test fail, which passes without it. The short form tries two in small
// packages, since each package costs a build.
func TestEachMutantIsCaught(t *testing.T) {
	chosen := list
	if os.Getenv("COORD_LONG") == "" {
		chosen = []mutant{list[1], list[len(list)-1]}
	}
	all, none := variantOfAll(t, chosen), newVariant(t, nil, nil)
	tried, alone := 0, 0 // tried: fewer than chosen when -run picks some
	for _, m := range chosen {
		t.Run(m.name, func(t *testing.T) {
			tried++
			missed := "it is not in that build"
			if number := all.number[m.name]; number > 0 {
				missed = m.missed(t, all.run(t, &m, number), all)
			}
			if missed != "" {
				// By itself it is judged as the change of the source that it is.
				alone++
				missed = m.missed(t, variantOf(t, &m).run(t, &m, 0), none)
			}
			if missed != "" {
				t.Error(missed)
			}
		})
	}
	t.Logf("figure: %d of %d mutants tried, all caught: %t; %d in a build of their own", tried, len(list), !t.Failed(), alone)
}

// missed says why the outcome of a mutant's test does not show that the test detects it, if it
// does not. without is the build in which the test has to pass.
func (m *mutant) missed(t *testing.T, o outcome, without *variant) string {
	t.Helper()
	_, test := m.where()
	if o.err == nil {
		return fmt.Sprintf("%s does not detect it:\n%s", test, tail(o.out))
	}
	if !strings.Contains(o.out, test) && !strings.Contains("\n"+o.out, "\npanic: ") {
		return fmt.Sprintf("another test failed than %s:\n%s", test, tail(o.out))
	}
	switch c := without.control(t, m); {
	case c.err != nil:
		return fmt.Sprintf("%s fails without the defect: %v\n%s", test, c.err, tail(c.out))
	case strings.Contains(o.out, "panic: test timed out") && c.took > limit/2:
		// The machine is too slow for the test, and not the defect makes it wait.
		return fmt.Sprintf("the time limit ended %s, which takes %v without the defect:\n%s", test, c.took, tail(o.out))
	}
	return ""
}

// home returns the folder of the module that has a folder, the folder as seen from there, and the
// setting of the environment with which the go command builds that module.
func home(t *testing.T, folder string) (dir, rel, work string) {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(top, folder)
	for rel = "."; ; {
		switch text, err := os.ReadFile(filepath.Join(dir, "go.mod")); {
		case err == nil && dir != top && !strings.Contains(string(text), "\nreplace "):
			// Its go.mod does not say where the other modules are.
			return dir, "./" + rel, "GOWORK=" + filepath.Join(top, "go.work")
		case err == nil:
			return dir, "./" + rel, "GOWORK=off"
		case dir == top:
			t.Fatalf("%s is in no module", folder)
		}
		dir, rel = filepath.Dir(dir), path.Join(filepath.Base(dir), rel)
	}
}

// where returns the import path of the package of the mutant's test, and the test.
func (m *mutant) where() (pkg, test string) {
	pkg, test = path.Join(module, path.Dir(m.file)), m.test
	if i := strings.LastIndexByte(m.test, '.'); i >= 0 {
		pkg, test = m.test[:i], m.test[i+1:]
	}
	test, _, _ = strings.Cut(test, "/")
	return pkg, test
}

func tail(out string) string { return out[max(0, len(out)-2000):] }
