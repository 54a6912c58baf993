package mutants

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEachMutantBuilds checks the types of all mutants. Mutants of different files are
// applied together, one in each file at a time, so that few checks are enough.
func TestEachMutantBuilds(t *testing.T) {
	fset := token.NewFileSet()
	imports := make(map[string]types.Importer)       // by the folder of the module
	folders := make(map[string]map[string][]*mutant) // by folder, then file
	for i := range list {
		m := &list[i]
		dir := filepath.Dir(m.file)
		if folders[dir] == nil {
			folders[dir] = make(map[string][]*mutant)
		}
		folders[dir][m.file] = append(folders[dir][m.file], m)
	}
	tried := 0
	for dir, files := range folders {
		base, _, work := home(t, dir)
		if imports[base] == nil {
			imports[base] = importer.ForCompiler(fset, "gc", exported(t, base, work))
		}
		from := imports[base]
		pkg, err := build.ImportDir(filepath.Join(root, dir), 0)
		if err != nil {
			t.Fatal(err)
		}
		rounds := 0
		for _, of := range files {
			rounds = max(rounds, len(of))
		}
		for k := range rounds {
			in := make(map[string]*mutant)
			var parsed []*ast.File
			for _, name := range pkg.GoFiles {
				path := filepath.Join(dir, name)
				var text any
				if of := files[path]; k < len(of) {
					in[path], text = of[k], of[k].apply(t)
					tried++
				}
				f, err := parser.ParseFile(fset, filepath.Join(root, path), text, parser.SkipObjectResolution)
				if err != nil {
					t.Fatalf("%s: %v", in[path].name, err)
				}
				parsed = append(parsed, f)
			}
			conf := types.Config{Importer: from, Error: func(err error) {
				e := err.(types.Error)
				file, _ := filepath.Rel(root, e.Fset.Position(e.Pos).Filename)
				if m := in[file]; m != nil {
					t.Errorf("mutant %q: %v", m.name, err)
				} else {
					t.Errorf("%v, with the mutants %q", err, names(in))
				}
			}}
			_, _ = conf.Check(pkg.Name, fset, parsed, nil) // Error gets each one
		}
	}
	if tried != len(list) {
		t.Errorf("%d mutants of %d were checked", tried, len(list))
	}
}

func names(in map[string]*mutant) (all []string) {
	for _, m := range in {
		all = append(all, m.name)
	}
	return all
}

// exported returns the compiled form of each package that the module in a folder uses. work is that of home.
func exported(t *testing.T, dir, work string) importer.Lookup {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), work)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}
