package etcd_test

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
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/recipetest"
)

// onRealServers returns the tests of a package that have a half on a real server, except those
// that use ZooKeeper itself. If most is not zero, it returns the first ones of each file, up to
// this number.
func onRealServers(t *testing.T, folder string, most int) []string {
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

// The tests of the recipes: of each suite one, or with COORD_LONG=1 all.
func TestTheRecipes(t *testing.T) {
	t.Parallel()
	on := func(o etcd.Options) func(t *testing.T) backendtest.Service {
		o.SessionTimeout = coordtest.RealTimeout
		return func(t *testing.T) backendtest.Service { return newService(t, shared.get(t), o) }
	}
	services := recipetest.Services{
		Name: "etcd", New: on(etcd.Options{}), Collecting: on(etcd.Options{ContainerInterval: 200 * time.Millisecond}), Revisions: true,
	}
	if os.Getenv("COORD_LONG") == "" {
		services.Sample = 1
	}
	recipetest.All(t, services)
}

// The reports of the recipes.
func TestInspectOnEtcd(t *testing.T) {
	t.Parallel()
	onEtcd(t, "inspect", 3)
}

// onEtcd runs the tests of a package that have a half on a real server, of which there are
// at least so many files. Each must pass.
func onEtcd(t *testing.T, folder string, files int) {
	t.Helper()
	most := 1
	if os.Getenv("COORD_LONG") != "" {
		most = 0
	}
	names := onRealServers(t, folder, most)
	if len(names) < files {
		t.Fatalf("found only %q", names)
	}
	out, err := elsewhere(t, folder, []string{"COORD_LONG=", "COORD_ETCD_SERVER=" + shared.get(t)},
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
	t.Logf("figure: %s: of %d tests on real servers %d were run on etcd and %d passed; %d of their subtests passed, %d failed",
		folder, len(onRealServers(t, folder, 0)), len(names), passed, len(forms), len(failed))
	if err != nil || t.Failed() {
		t.Errorf("%v\n%s", err, tail(out))
	}
}

// tail returns what tests that failed have said.
func tail(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "=== ") && !strings.Contains(line, "--- PASS") && !strings.Contains(line, "--- SKIP") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-200):], "")
}
