package mutants

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A variant is the library with other texts of some files.
type variant struct {
	dir     string
	overlay string // the JSON by which the go command reads the texts

	mu       sync.Mutex                // Of two mutants that are tried at a time, one builds.
	binaries map[string]string         // of the tests of a folder
	controls map[string]func() outcome // of a test with no defect turned on
}

// outcome is that of one run of a test.
type outcome struct {
	out  string
	err  error
	took time.Duration
}

// switchName is the file in each package with defects that says which one is turned on.
const (
	switchName = "zz_mutant_on.go"
	switchText = `package %s

import (
	"os"
	"strconv"
)

var mutantOn, _ = strconv.Atoi(os.Getenv("COORD_MUTANT"))
`
)

// noReturn is the end of a body that its defect keeps from returning, which would not compile alone.
const noReturn = "the mutant lacks a return"

// together returns the texts of files with all mutants that are in bodies of functions, which
// saves the build of each: a function begins with a copy of its body for each of its mutants, and
// the environment of a test turns one on. Those mutants get a number.
func together(all []*place) map[string]string {
	copies := make(map[*declaration]string)
	for i, p := range all {
		if p.body == nil || p.begin < p.body[0] || p.end > p.body[1] {
			continue
		}
		p.number = i + 1
		end := fmt.Sprintf("panic(%q)", noReturn)
		if p.action {
			end = "return"
		}
		copies[p.declaration] += fmt.Sprintf("\nif mutantOn == %d {\n//line %s:1\n%s\n%s\n}\n",
			p.number, p.name, p.source[p.body[0]:p.begin]+p.text+p.source[p.end:p.body[1]], end)
	}
	texts := make(map[string]string)
	for _, d := range slices.SortedFunc(maps.Keys(copies), func(a, b *declaration) int { return b.from - a.from }) {
		text := cmp.Or(texts[d.file], d.source)
		texts[d.file] = text[:d.body[0]] + copies[d] + text[d.body[0]:]
		texts[path.Join(path.Dir(d.file), switchName)] = fmt.Sprintf(switchText, d.pkg)
	}
	return texts
}

// newVariant returns the variant with the texts of files of the repository.
func newVariant(t *testing.T, texts map[string]string) *variant {
	t.Helper()
	v := &variant{dir: t.TempDir(), binaries: make(map[string]string), controls: make(map[string]func() outcome)}
	replace := make(map[string]string)
	for file, text := range texts {
		abs, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		replace[abs] = filepath.Join(v.dir, fmt.Sprintf("%d.go", len(replace)))
		if err := os.WriteFile(replace[abs], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	v.overlay = filepath.Join(v.dir, "overlay.json")
	if err := os.WriteFile(v.overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return v
}

// goCommand returns a go command in the workspace, which has the modules of all mutants.
func goCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK=")
	return cmd
}

// tests returns the binary of the tests of a folder.
func (v *variant) tests(t *testing.T, folder string) string {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.binaries[folder] == "" {
		binary := filepath.Join(v.dir, fmt.Sprintf("%d.test", len(v.binaries)))
		if out, err := goCommand(t, "test", "-c", "-o", binary, "-overlay", v.overlay, "-vet=off", "-ldflags=-s -w", "./"+folder).CombinedOutput(); err != nil {
			t.Fatalf("%s does not build: %v\n%s", folder, err, tail(string(out)))
		}
		v.binaries[folder] = binary
	}
	return v.binaries[folder]
}

// run runs the test of a mutant, on memory only, with the defect that has a number, or none.
func (v *variant) run(t *testing.T, p *place, number int, limit time.Duration) outcome {
	t.Helper()
	// Without fake time, a test that waits for ever is ended by its limit; the context is for
	// what does not even end then.
	ctx, cancel := context.WithTimeout(t.Context(), limit+4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, v.tests(t, p.folder), "-test.timeout="+limit.String(), "-test.run", "^"+strings.Join(p.pattern(), "$/^")+"$", "-test.skip", "/zookeeper|//zookeeper|///zookeeper")
	cmd.Dir = filepath.Join(root, p.folder)
	cmd.Env = append(os.Environ(), "COORD_LONG=", "COORD_MUTANT="+strconv.Itoa(number))
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	return outcome{string(out), err, time.Since(begin)}
}

// control runs the test of a mutant without a defect, once.
func (v *variant) control(t *testing.T, p *place) outcome {
	t.Helper()
	v.tests(t, p.folder) // It ends t if they do not build.
	v.mu.Lock()
	run := v.controls[p.test]
	if run == nil {
		run = sync.OnceValue(func() outcome { return v.run(t, p, 0, 2*time.Minute) })
		v.controls[p.test] = run
	}
	v.mu.Unlock()
	return run()
}

// limit ends the test with a defect that makes it wait for ever. It is much longer than a test
// takes without a defect on a machine that is as busy.
func (o outcome) limit() time.Duration { return 30*time.Second + 5*o.took }
