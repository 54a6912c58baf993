package mutants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Each defect compiles: its package has no error of syntax or type with it. Those that TestEachMutantIsCaught puts into
// one build are checked together.
func TestEachMutantBuilds(t *testing.T) {
	all := places(t, list)
	folders := make(map[string]bool)
	for _, p := range all {
		folders[path.Dir(p.file)] = true
	}
	texts := together(all)
	c := newChecker(t, slices.Sorted(maps.Keys(folders)))
	check := func(what, folder string, texts map[string]string) {
		if err := c.check(folder, texts); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, p := range all {
		if p.number == 0 {
			check(p.name, path.Dir(p.file), map[string]string{p.file: p.changed()})
		}
	}
	for folder := range folders {
		check("all others", folder, texts)
	}
	unused := "package layout\n\nfunc _() { unused := 1 }\n"
	if err := c.check("internal/layout", map[string]string{"internal/layout/zz_unused.go": unused}); err == nil || !strings.Contains(err.Error(), "unused") {
		t.Errorf("a variable that is not used: %v", err)
	}
}

// A checker finds the errors of syntax and type in packages with other texts of some files. It takes the types of
// imported packages from the build cache: a defect in a package changes none of the names that it exports.
type checker struct {
	dir      string // of the repository
	packages map[string]*listed
	files    *token.FileSet
	parsed   map[string]*ast.File
	importer types.Importer
}

// listed is what go list says about a package.
type listed struct {
	ImportPath, Dir, Name, Export string
	GoFiles                       []string
	Module                        *struct{ GoVersion string }
}

func newChecker(t *testing.T, folders []string) *checker {
	t.Helper()
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{dir: dir, packages: make(map[string]*listed), files: token.NewFileSet(), parsed: make(map[string]*ast.File)}
	args := []string{"list", "-buildvcs=false", "-export", "-deps", "-json=ImportPath,Dir,Name,Export,GoFiles,Module"}
	for _, folder := range folders {
		args = append(args, "./"+folder)
	}
	cmd := goCommand(t, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, tail(errs.String()))
	}
	exports := make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if folder, err := filepath.Rel(dir, p.Dir); err == nil {
			c.packages[filepath.ToSlash(folder)] = &p
		}
	}
	c.importer = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no package %s was compiled", path)
		}
		return os.Open(exports[path])
	})
	return c
}

// check returns the first error of the package in a folder, with other texts of some files.
func (c *checker) check(folder string, texts map[string]string) error {
	p := c.packages[folder]
	if p == nil {
		return fmt.Errorf("there is no package in %s", folder)
	}
	names := make(map[string]bool)
	for _, name := range p.GoFiles {
		names[path.Join(folder, name)] = true
	}
	for name := range texts {
		if path.Dir(name) == folder {
			names[name] = true
		}
	}
	var parsed []*ast.File
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f, err := c.parse(name, texts)
		if err != nil {
			return err
		}
		parsed = append(parsed, f)
	}
	config := types.Config{Importer: c.importer, Sizes: types.SizesFor("gc", runtime.GOARCH), GoVersion: "go" + p.Module.GoVersion}
	_, err := config.Check(p.ImportPath, c.files, parsed, nil)
	return err
}

// parse parses a file once, and each other text of it.
func (c *checker) parse(name string, texts map[string]string) (*ast.File, error) {
	if text, ok := texts[name]; ok {
		return parser.ParseFile(c.files, name, text, parser.SkipObjectResolution)
	}
	if f := c.parsed[name]; f != nil {
		return f, nil
	}
	f, err := parser.ParseFile(c.files, filepath.Join(c.dir, filepath.FromSlash(name)), nil, parser.SkipObjectResolution)
	if err == nil {
		c.parsed[name] = f
	}
	return f, err
}
