package mutants

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const root = "../.."

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
	for _, m := range list {
		if m.apply(t) == "" || m.folder(t) == "" {
			t.Errorf("%s: there is no %s", m.name, m.test)
		}
	}
}

// folder returns the directory of the mutant's test: that of the file, or the root. It is
// empty if there is no such test.
func (m *mutant) folder(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{filepath.Dir(m.file), "."} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "\nfunc "+m.test+"(t *testing.T)") {
				return dir
			}
		}
	}
	return ""
}

// Each defect makes its test fail. The short form tries two, since each costs a build.
func TestEachMutantIsCaught(t *testing.T) {
	chosen := list
	if os.Getenv("COORD_LONG") == "" {
		chosen = []mutant{list[0], list[len(list)-1]}
	}
	tried := 0 // fewer than chosen when -run picks some
	for _, m := range chosen {
		t.Run(m.name, func(t *testing.T) {
			tried++
			out, err := m.run(t)
			switch {
			case err == nil:
				t.Errorf("%s does not detect it:\n%s", m.test, tail(out))
			case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
				t.Errorf("it does not build:\n%s", tail(out))
			case !strings.Contains(out, m.test):
				t.Errorf("another test failed than %s:\n%s", m.test, tail(out))
			}
		})
	}
	t.Logf("figure: %d of %d mutants tried, all caught: %t", tried, len(list), !t.Failed())
}

// run runs the test of the mutant, on memory only.
func (m *mutant) run(t *testing.T) (string, error) {
	dir := t.TempDir()
	abs, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	file, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, []byte(m.apply(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {abs: file}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// Some defects make a test wait for ever; without fake time, this limit ends it.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-vet=off", "-ldflags=-s -w", "-count=1", "-timeout=90s",
		"-run", "^"+m.test+"$", "-skip", "/zookeeper|//zookeeper", "./"+filepath.ToSlash(m.folder(t)))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "COORD_LONG=")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func tail(out string) string { return out[max(0, len(out)-2000):] }
