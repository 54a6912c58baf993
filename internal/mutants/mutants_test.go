package mutants

import (
	"context"
	"encoding/json"
	"go/build"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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
	for _, m := range list {
		pkg, test := m.where()
		if there[pkg] == "" {
			there[pkg] = testsOf(t, pkg)
		}
		if m.apply(t) == "" || !strings.Contains(there[pkg], "\nfunc "+test+"(t *testing.T)") {
			t.Errorf("%s: there is no %s in %s", m.name, test, pkg)
		}
	}
}

// testsOf returns the sources of all tests that go test runs in a package.
func testsOf(t *testing.T, pkg string) string {
	t.Helper()
	dir := filepath.Join(root, strings.TrimPrefix(pkg, module))
	p, err := build.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// Each defect makes its test fail. The short form tries two in small packages, since each costs a
// build.
func TestEachMutantIsCaught(t *testing.T) {
	chosen := list
	if os.Getenv("COORD_LONG") == "" {
		chosen = []mutant{list[1], list[len(list)-1]}
	}
	tried, stopped := 0, 0 // tried: fewer than chosen when -run picks some
	for _, m := range chosen {
		t.Run(m.name, func(t *testing.T) {
			tried++
			out, err := m.run(t, m.overlay(t))
			_, test := m.where()
			switch {
			case err == nil:
				t.Errorf("%s does not detect it:\n%s", test, tail(out))
			case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
				t.Errorf("it does not build:\n%s", tail(out))
			case !strings.Contains(out, test) && !strings.Contains("\n"+out, "\npanic: "):
				t.Errorf("another test failed than %s:\n%s", test, tail(out))
			case strings.Contains(out, "panic: test timed out"):
				// The defect made the test wait, unless the machine is too slow for the test.
				stopped++
				begin := time.Now()
				if out, err := m.run(t, "{}"); err != nil || time.Since(begin) > limit/2 {
					t.Errorf("the time limit ended %s, which takes %v without the defect: %v\n%s", test, time.Since(begin), err, tail(out))
				}
			}
		})
	}
	t.Logf("figure: %d of %d mutants tried, all caught: %t, by the time limit: %d", tried, len(list), !t.Failed(), stopped)
}

// limit ends a test that waits for ever.
const limit = 90 * time.Second

// overlay returns the JSON by which the go command reads the file with the defect.
func (m *mutant) overlay(t *testing.T) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mutant.go")
	if err := os.WriteFile(file, []byte(m.apply(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {abs: file}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs the test of the mutant with an overlay, on memory only.
func (m *mutant) run(t *testing.T, overlay string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	// Without fake time, a test that waits for ever is ended by its limit; the context is for
	// what does not even end then.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	pkg, test := m.where()
	pattern := "^" + test + "$"
	if _, sub, ok := strings.Cut(m.test, test+"/"); ok {
		pattern += "/^" + sub + "$"
	}
	dir, pkg, work := home(t, strings.TrimPrefix(pkg, module))
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", file, "-vet=off", "-ldflags=-s -w", "-count=1", "-timeout="+limit.String(),
		"-run", pattern, "-skip", "/zookeeper|//zookeeper", pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "COORD_LONG=", work)
	out, err := cmd.CombinedOutput()
	return string(out), err
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
