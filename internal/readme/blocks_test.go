package readme

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const modulePath = "github.com/go-coord/coord"

// wellKnown are the packages of the standard library that a block need not import.
var wellKnown = []string{
	"bytes", "context", "crypto/tls", "crypto/x509", "database/sql", "encoding/json", "errors", "expvar", "fmt", "io", "log", "log/slog", "maps", "net", "net/http",
	"os", "os/exec", "os/signal", "slices", "sort", "strconv", "strings", "sync", "sync/atomic", "syscall", "testing",
	"testing/synctest", "time",
}

type blockKind int

const (
	declarations blockKind = iota
	statements
	wholeFile
)

// A block is a Go block of a page, or a comment of the page with Go code.
type block struct {
	page   string
	line   int // of the first line of source
	source string
	kind   blockKind
	tests  []string // and examples with an output

	illustrative, alone bool
	module              string // the folder of a module
}

var blockForm = regexp.MustCompile("(?ms)^(?:```go((?: [^\n]*)?)\n(.*?)^```$|<!-- go((?: [^\n]*)?)\n(.*?)^-->$)")

// blocksOf returns the blocks of a page.
func blocksOf(page, text string) ([]block, error) {
	var blocks []block
	for _, m := range blockForm.FindAllStringSubmatchIndex(text, -1) {
		words, source := 2, 4
		if m[words] < 0 {
			words, source = 6, 8
		}
		b := block{page: page, module: ".", source: text[m[source]:m[source+1]], line: 1 + strings.Count(text[:m[source]], "\n")}
		for _, word := range strings.Fields(text[m[words]:m[words+1]]) {
			folder, isModule := strings.CutPrefix(word, "in=")
			switch {
			case word == "illustrative":
				b.illustrative = true
			case word == "alone":
				b.alone = true
			case isModule:
				b.module = folder
			default:
				return nil, fmt.Errorf("%s:%d: a block is marked %q, which is no mark", page, b.line-1, word)
			}
		}
		if err := b.parse(); err != nil && !b.illustrative {
			return nil, err
		}
		blocks = append(blocks, b)
	}
	if n := len(regexp.MustCompile("(?m)^[ \t]+```go|^```(?:golang|Go)\\b").FindAllString(text, -1)); n > 0 {
		return nil, fmt.Errorf("%s: %d Go blocks are indented or not marked with go, so nothing builds them", page, n)
	}
	return blocks, nil
}

// parse finds out the kind of the block.
func (b *block) parse() error {
	b.kind = wholeFile
	f, err := parser.ParseFile(token.NewFileSet(), "", b.source, parser.ParseComments)
	if !strings.HasPrefix(b.source, "package ") {
		b.kind = declarations
		f, err = parser.ParseFile(token.NewFileSet(), "", "package page\n"+b.source, parser.ParseComments)
	}
	if err != nil && b.kind == declarations {
		b.kind = statements
		_, err = parser.ParseFile(token.NewFileSet(), "", "package page\nfunc _() {\n"+b.source+"\n}", 0)
	}
	if err != nil {
		return fmt.Errorf("%s:%d: the block is no Go: %w", b.page, b.line, err)
	}
	if b.kind == statements {
		return nil
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
			b.tests = append(b.tests, fn.Name.Name)
		}
		if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "Example") && strings.Contains(b.source, "// Output:") {
			b.tests = append(b.tests, fn.Name.Name)
		}
	}
	return nil
}

// folder is that of the package which the block belongs to.
func (b *block) folder() string {
	dir := strings.ToLower(strings.ReplaceAll(strings.TrimSuffix(b.page, ".md"), "/", "_"))
	if b.alone || b.kind == wholeFile {
		dir += fmt.Sprintf("_%d", b.line)
	}
	return dir
}

// file returns the block as a whole file, with the imports that it leaves out.
func (b *block) file(importable map[string]string) (string, error) {
	mark := fmt.Sprintf("//line %s:%d\n", b.page, b.line)
	if b.kind == wholeFile {
		return mark + b.source, nil
	}
	code := mark + b.source
	if b.kind == statements {
		// vet finds what follows a block that returns unreachable, unless a goto leads there.
		code = "func _(ctx context.Context, c *coord.Client, t *testing.T) error {\n" + code + "\nend:\n" + b.uses() + "if ctx == nil {\ngoto end\n}\nreturn nil\n}\n"
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", "package page\n"+code, 0)
	if err != nil {
		return "", err
	}
	missing := make(map[string]bool)
	for _, id := range f.Unresolved {
		missing[id.Name] = true
	}
	for _, spec := range f.Imports {
		name := path.Base(strings.Trim(spec.Path.Value, `"`))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		delete(missing, name)
	}
	var imports strings.Builder
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && missing[x.Name] && importable[x.Name] != "" {
				fmt.Fprintf(&imports, "import %q\n", importable[x.Name])
				delete(missing, x.Name)
			}
		}
		return true
	})
	return "package page\n" + imports.String() + code, nil
}

// uses returns statements that use the variables which the block, a list of statements, declares.
func (b *block) uses() string {
	f, err := parser.ParseFile(token.NewFileSet(), "", "package page\nfunc _() {\n"+b.source+"\n}", 0)
	if err != nil {
		return ""
	}
	var names []string
	for _, s := range f.Decls[0].(*ast.FuncDecl).Body.List {
		switch s := s.(type) {
		case *ast.AssignStmt:
			for _, x := range s.Lhs {
				if id, ok := x.(*ast.Ident); ok && s.Tok == token.DEFINE && id.Name != "_" {
					names = append(names, id.Name)
				}
			}
		case *ast.DeclStmt:
			if d, ok := s.Decl.(*ast.GenDecl); ok && d.Tok == token.VAR {
				for _, spec := range d.Specs {
					for _, id := range spec.(*ast.ValueSpec).Names {
						names = append(names, id.Name)
					}
				}
			}
		}
	}
	var uses strings.Builder
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		fmt.Fprintf(&uses, "_ = %s\n", name)
	}
	return uses.String()
}

// A module holds the packages of the pages. It requires what one module of this repository
// requires, and that module itself.
type module struct {
	dir        string
	importable map[string]string // by the name of the package
	tested     map[string]bool   // the folders with tests
}

func newModule(t *testing.T, folder string) *module {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	m := &module{dir: t.TempDir(), importable: make(map[string]string), tested: make(map[string]bool)}
	for _, p := range wellKnown {
		m.importable[path.Base(p)] = p
	}
	m.learn(t, top, ".")
	mod := readFile(t, filepath.Join(root, folder, "go.mod"))
	own := modulePath
	if folder != "." {
		m.learn(t, top, folder)
		own += "/" + folder
	}
	mod = regexp.MustCompile(`(?m)^(module|replace) .*$`).ReplaceAllString(mod, "")
	mod = "module example.com/pages\n" + mod + "\nrequire " + own + " v0.0.0\n"
	for _, line := range all(readFile(t, filepath.Join(root, "go.work")), `(?m)^\t(\.\S*)$`) {
		target := path.Join(modulePath, line)
		mod += fmt.Sprintf("\nreplace %s => %s\n", target, filepath.Join(top, line))
	}
	m.write(t, "go.mod", mod)
	m.write(t, "go.sum", readFile(t, filepath.Join(root, folder, "go.sum"))+readFile(t, filepath.Join(root, "go.sum")))
	return m
}

// learn makes the packages of the module in a folder importable.
func (m *module) learn(t *testing.T, top, folder string) {
	t.Helper()
	base := filepath.Join(top, folder)
	err := filepath.WalkDir(base, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); dir != base && (err == nil || d.Name() == "internal" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if len(sources) > 0 {
			rel, _ := filepath.Rel(top, dir) // both are absolute
			p := path.Join(modulePath, filepath.ToSlash(rel))
			m.importable[path.Base(p)] = p
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// add writes the packages of blocks, and returns the names of the tests among them.
func (m *module) add(t *testing.T, blocks []block) (tests []string) {
	t.Helper()
	drives := make(map[string]string)
	for i, b := range blocks {
		text, err := b.file(m.importable)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("block%d.go", i)
		if len(b.tests) > 0 {
			name = fmt.Sprintf("block%d_test.go", i)
			m.tested["./"+b.folder()] = true
		}
		m.write(t, filepath.Join(b.folder(), name), text)
		tests = append(tests, b.tests...)
		page := strings.TrimSuffix(filepath.Base(b.page), ".md")
		if b.module != "." {
			page += "_" + strings.ReplaceAll(b.module, "/", "_")
		}
		if b.kind != wholeFile && !b.alone {
			drives[filepath.Join(b.folder(), "drives_test.go")] = filepath.Join("testdata", page+"_test.go.txt")
		}
	}
	for _, to := range slices.Sorted(maps.Keys(drives)) {
		text, err := os.ReadFile(drives[to])
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		m.write(t, to, string(text))
		m.tested["./"+filepath.Dir(to)] = true
		tests = append(tests, all(string(text), `(?m)^func (Test\w+)\(`)...)
	}
	return tests
}

func (m *module) write(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(m.dir, name)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, []byte(content), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// check vets all packages, which checks their types, and then runs the tests and returns what they print. vet has its
// default checks: with others it would analyze all imported packages again.
func (m *module) check(t *testing.T) string {
	t.Helper()
	m.run(t, "go", "vet", "./...")
	if len(m.tested) == 0 {
		return ""
	}
	return m.run(t, append([]string{"go", "test", "-count=1", "-vet=off", "-v"}, slices.Sorted(maps.Keys(m.tested))...)...)
}

func (m *module) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.try(t, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (m *module) try(t *testing.T, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = m.dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod "+os.Getenv("GOFLAGS"))
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
