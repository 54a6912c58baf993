package mutants

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A variant is the library with other texts of some files. The variant of all mutants saves the
// build of each: a function with defects begins with a copy of its body for each one, and the
// environment of a test turns one of them on.
type variant struct {
	dir      string
	overlay  string             // the JSON by which the go command reads the texts
	number   map[string]int     // of a mutant that can be turned on, by its name
	binaries map[string]string  // of the tests of a package
	controls map[string]outcome // of a test with no defect turned on
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

// variantOf returns the variant with the one defect.
func variantOf(t *testing.T, m *mutant) *variant {
	t.Helper()
	return newVariant(t, map[string]string{m.file: m.apply(t)}, nil)
}

// variantOfAll returns the variant of all mutants, in which each one that is in the body of a
// function has a number. Those of a function with labels have none: a copy would double them.
func variantOfAll(t *testing.T, chosen []mutant) *variant {
	t.Helper()
	of := make(map[string][]*mutant) // by file
	for i := range chosen {
		of[chosen[i].file] = append(of[chosen[i].file], &chosen[i])
	}
	texts, number := make(map[string]string), make(map[string]int)
	for _, file := range slices.Sorted(maps.Keys(of)) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		text, name := withBodies(t, string(src), of[file], number)
		texts[file] = text
		texts[filepath.Join(filepath.Dir(file), switchName)] = fmt.Sprintf(switchText, name)
	}
	return newVariant(t, texts, number)
}

// withBodies returns the source with the bodies of its mutants, and the name of its package.
// It numbers the mutants.
func withBodies(t *testing.T, src string, of []*mutant, number map[string]int) (text, pkg string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	bodies := make(map[int]string) // by the offset behind the brace
	for _, m := range of {
		begin := strings.Index(src, m.old)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || begin <= at(fn.Body.Lbrace) || begin+len(m.old) > at(fn.Body.Rbrace) || hasLabels(fn) {
				continue
			}
			number[m.name] = len(number) + 1
			from, to := at(fn.Body.Lbrace)+1, at(fn.Body.Rbrace)+len(m.new)-len(m.old)
			body := m.apply(t)[from:to]
			if fn.Type.Results == nil {
				body += "\nreturn"
			}
			bodies[from] += fmt.Sprintf("\nif mutantOn == %d {\n%s\n}\n", number[m.name], body)
		}
	}
	for _, i := range slices.Backward(slices.Sorted(maps.Keys(bodies))) {
		src = src[:i] + bodies[i] + src[i:]
	}
	return src, f.Name.Name
}

func hasLabels(fn *ast.FuncDecl) (found bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		_, ok := n.(*ast.LabeledStmt)
		found = found || ok
		return true
	})
	return found
}

// newVariant returns the variant with the texts of files of the repository.
func newVariant(t *testing.T, texts map[string]string, number map[string]int) *variant {
	t.Helper()
	v := &variant{dir: t.TempDir(), number: number, binaries: make(map[string]string), controls: make(map[string]outcome)}
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

// limit ends a test that waits for ever.
const limit = 90 * time.Second

// tests returns the binary of the tests of a package, and the folder in which they run.
func (v *variant) tests(t *testing.T, pkg string) (binary, folder string) {
	t.Helper()
	dir, rel, work := home(t, strings.TrimPrefix(pkg, module))
	folder = filepath.Join(dir, rel)
	if v.binaries[pkg] == "" {
		binary := filepath.Join(v.dir, fmt.Sprintf("%d.test", len(v.binaries)))
		cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, "-overlay", v.overlay, "-vet=off", "-ldflags=-s -w", rel)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), work)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s does not build: %v\n%s", pkg, err, tail(string(out)))
		}
		v.binaries[pkg] = binary
	}
	return v.binaries[pkg], folder
}

// run runs the test of a mutant, on memory only, with the defect that has a number, or none.
func (v *variant) run(t *testing.T, m *mutant, number int) outcome {
	t.Helper()
	pkg, test := m.where()
	pattern := "^" + test + "$"
	if _, sub, ok := strings.Cut(m.test, test+"/"); ok {
		pattern += "/^" + sub + "$"
	}
	binary, folder := v.tests(t, pkg)
	// Without fake time, a test that waits for ever is ended by its limit; the context is for
	// what does not even end then.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.timeout="+limit.String(), "-test.run", pattern, "-test.skip", "/zookeeper|//zookeeper|///zookeeper")
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "COORD_LONG=", "COORD_MUTANT="+strconv.Itoa(number))
	cmd.WaitDelay = 5 * time.Second
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	return outcome{string(out), err, time.Since(begin)}
}

// control runs the test of a mutant without a defect, once in a build.
func (v *variant) control(t *testing.T, m *mutant) outcome {
	t.Helper()
	key := path.Join(path.Dir(m.file), m.test)
	if _, ok := v.controls[key]; !ok {
		v.controls[key] = v.run(t, m, 0)
	}
	return v.controls[key]
}
