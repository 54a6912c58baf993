package elsewhere

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// RunHalves runs, on the service called name, tests of a package that run in memory and on a real server: the
// first of each file, or with COORD_LONG=1 all. It must find at least that many tests, and each must pass.
func (m Module) RunHalves(t *testing.T, folder, name string, least int, env ...string) {
	t.Helper()
	most := 1
	if os.Getenv("COORD_LONG") != "" {
		most = 0
	}
	names := halves(t, folder, most)
	if len(names) < least {
		t.Fatalf("found only %q", names)
	}
	out, err := m.Run(t, folder, append(env, "COORD_LONG="),
		"-timeout", "25m", "-parallel", "8", "-run", "^("+strings.Join(names, "|")+")$", "-skip", "/^memory|//^memory")
	forms := regexp.MustCompile(`(?m)^ +--- PASS: (\w+)/(\S+/)?zookeeper `).FindAllStringSubmatch(out, -1)
	failed := regexp.MustCompile(`(?m)^ +--- FAIL: \S+/zookeeper `).FindAllString(out, -1)
	passed := 0
	for _, name := range names {
		switch {
		case slices.ContainsFunc(forms, func(m []string) bool { return m[1] == name }):
			passed++
		case strings.Contains(out, "the machine is too slow") && regexp.MustCompile(`(?m)^ +--- SKIP: `+name+`/(\S+/)?zookeeper `).MatchString(out):
			t.Logf("%s was skipped", name)
		default:
			t.Errorf("%s has not passed", name)
		}
	}
	t.Logf("figure: %s: of %d tests on real servers %d were run on %s and %d passed; %d of their subtests passed, %d failed",
		folder, len(halves(t, folder, 0)), len(names), name, passed, len(forms), len(failed))
	if err != nil || t.Failed() {
		t.Errorf("%v\n%s", err, Tail(out))
	}
}

// halves returns the tests of a package that run in memory and on a real server, except those that use
// ZooKeeper itself. If most is not zero, it returns the first ones of each file, up to this number.
func halves(t *testing.T, folder string, most int) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	type function struct {
		name, text string
		uses       []string // the names in it
	}
	funcs := make(map[string]function)
	tests := make([][]function, len(files)) // of each file
	set := token.NewFileSet()
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(set, file, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Recv != nil {
				continue
			}
			f := function{name: d.Name.Name, text: string(text[set.Position(d.Pos()).Offset:set.Position(d.End()).Offset])}
			ast.Inspect(d.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					f.uses = append(f.uses, id.Name)
				}
				return true
			})
			funcs[f.name] = f
			if strings.HasPrefix(f.name, "Test") && f.name != "TestMain" {
				tests[i] = append(tests[i], f)
			}
		}
	}
	// has reports whether f has a half on a real server, or a function of the package that f uses.
	known := make(map[string]bool)
	var has func(f function) bool
	has = func(f function) bool {
		if found, ok := known[f.name]; ok {
			return found
		}
		known[f.name] = false // for functions that use each other
		known[f.name] = strings.Contains(f.text, "coordtest.OnEach(") || strings.Contains(f.text, `t.Run("zookeeper"`) ||
			slices.ContainsFunc(f.uses, func(name string) bool { return has(funcs[name]) })
		return known[f.name]
	}
	var names []string
	for _, tests := range tests {
		n := len(names)
		for _, f := range tests {
			if has(f) && !strings.Contains(f.text, "zkservice.") && !strings.Contains(f.text, "zktest.") &&
				(most == 0 || len(names) < n+most) {
				names = append(names, f.name)
			}
		}
	}
	return names
}
