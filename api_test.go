package coord_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var updateAPI = flag.Bool("update-api", false, "write api.txt")

const modulePath = "github.com/go-coord/coord"

// TestAPI keeps api.txt true: the exported API of every package that programs
// can import. After an intended change:
//
//	go test -run TestAPI -update-api .
func TestAPI(t *testing.T) {
	var api []string
	for _, p := range apiPackages(t) {
		api = append(api, p.api()...)
	}
	text := strings.Join(api, "\n") + "\n"
	if *updateAPI {
		if err := os.WriteFile("api.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(old) == text {
		return
	}
	diff := apiDiff(strings.Split(strings.TrimSuffix(string(old), "\n"), "\n"), api)
	t.Errorf("the API differs from api.txt; if that is intended, run\n"+
		"  go test -run TestAPI -update-api .\n%s", strings.Join(diff, "\n"))
}

func TestEveryExportedNameHasAComment(t *testing.T) {
	for _, p := range apiPackages(t) {
		for _, d := range p.decls() {
			if !d.commented {
				t.Errorf("%s: %s has no comment", p.fset.Position(d.pos), d.text)
			}
		}
		if !slices.ContainsFunc(p.files, func(f *ast.File) bool { return f.Doc != nil }) {
			t.Errorf("package %s has no comment", p.path)
		}
	}
}

// A program that uses one backend links no other, and the core stays free of packages that only
// a transport needs.
func TestTheCoreImportsNoBackendAndNoNetwork(t *testing.T) {
	allowed := []string{modulePath + "/backend", modulePath + "/trace", "golang.org/x/sync/errgroup",
		"crypto/sha256"} // of the keys of items: a stranger may choose them, so no two may collide
	core := []string{"."} // with the engines that it imports
	for i := 0; i < len(core); i++ {
		for _, f := range parseAPI(t, core[i]).files {
			for _, spec := range f.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				first, _, _ := strings.Cut(path, "/")
				dir, own := strings.CutPrefix(path, modulePath+"/")
				switch {
				case own && strings.HasPrefix(dir, "internal/"):
					if !slices.Contains(core, dir) {
						core = append(core, dir)
					}
				case (strings.Contains(first, ".") || first == "net" || first == "crypto") && !slices.Contains(allowed, path):
					t.Errorf("%s imports %s", core[i], path)
				}
			}
		}
	}
	if len(core) < 10 {
		t.Errorf("the core is %q", core)
	}
}

// apiPackage is a parsed package, without tests.
type apiPackage struct {
	path  string // below the module
	fset  *token.FileSet
	files []*ast.File
}

// apiPackages returns the packages that programs outside of the module can
// import, sorted by path.
func apiPackages(t *testing.T) []apiPackage {
	t.Helper()
	var packages []apiPackage
	err := filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != "." {
			name := d.Name()
			if name == "internal" || name == "testdata" || strings.ContainsAny(name[:1], "._") {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				return fs.SkipDir // another module
			}
		}
		if p := parseAPI(t, dir); len(p.files) > 0 && p.files[0].Name.Name != "main" {
			packages = append(packages, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

// parseAPI parses the files that belong to the package on Linux.
func parseAPI(t *testing.T, dir string) apiPackage {
	t.Helper()
	p := apiPackage{path: filepath.ToSlash(dir), fset: token.NewFileSet()}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	target := build.Default
	target.GOOS, target.GOARCH = "linux", "amd64"
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		if ok, err := target.MatchFile(dir, name); err != nil {
			t.Fatal(err)
		} else if !ok {
			continue
		}
		f, err := parser.ParseFile(p.fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, f)
	}
	return p
}

// api returns the lines of the package in api.txt.
func (p *apiPackage) api() []string {
	name := "coord"
	if p.path != "." {
		name = p.path
	}
	var lines []string
	for _, d := range p.decls() {
		lines = append(lines, "pkg "+name+", "+d.text)
		for _, part := range d.parts {
			lines = append(lines, "pkg "+name+", "+part)
		}
	}
	slices.Sort(lines)
	return lines
}

// apiDecl is something exported.
type apiDecl struct {
	pos       token.Pos
	text      string
	parts     []string // fields, which need no comment of their own
	commented bool
}

func (p *apiPackage) decls() []apiDecl {
	var all []apiDecl
	for _, f := range p.files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				all = append(all, p.function(d)...)
			case *ast.GenDecl:
				switch d.Tok {
				case token.CONST, token.VAR:
					all = append(all, p.values(d)...)
				case token.TYPE:
					for _, spec := range d.Specs {
						all = append(all, p.typ(d, spec.(*ast.TypeSpec))...)
					}
				}
			}
		}
	}
	return all
}

func (p *apiPackage) function(d *ast.FuncDecl) []apiDecl {
	if !d.Name.IsExported() {
		return nil
	}
	text := "func "
	if d.Recv != nil {
		recv := d.Recv.List[0].Type
		if !ast.IsExported(apiTypeName(recv)) {
			return nil
		}
		text = "method (" + p.print(recv) + ") "
	}
	text += d.Name.Name + p.typeParams(d.Type.TypeParams)
	signature := &ast.FuncType{Params: d.Type.Params, Results: d.Type.Results}
	text += strings.TrimPrefix(p.print(signature), "func")
	return []apiDecl{{pos: d.Pos(), text: text, commented: d.Doc != nil}}
}

// values returns constants and variables. A constant that repeats the
// expression of an earlier one with the next iota is shown with its value.
func (p *apiPackage) values(d *ast.GenDecl) []apiDecl {
	var all []apiDecl
	var last *ast.ValueSpec
	for iota, spec := range d.Specs {
		spec := spec.(*ast.ValueSpec)
		if d.Tok == token.VAR || len(spec.Values) > 0 {
			last = spec
		}
		for i, name := range spec.Names {
			if !name.IsExported() {
				continue
			}
			text := d.Tok.String() + " " + name.Name
			if last.Type != nil {
				text += " " + p.print(last.Type)
			}
			if d.Tok == token.CONST {
				text += " = " + p.constant(last.Values[i], iota)
			}
			all = append(all, apiDecl{pos: name.Pos(), text: text,
				commented: d.Doc != nil || spec.Doc != nil || spec.Comment != nil})
		}
	}
	return all
}

// constant returns the value of an expression of literals and iota, and any
// other expression as it is written.
func (p *apiPackage) constant(x ast.Expr, iota int) string {
	text := p.print(x)
	var words []string
	ast.Inspect(x, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			words = append(words, id.Name)
		}
		return true
	})
	value := text
	switch {
	case len(words) == 1 && words[0] == "iota":
		value = strings.Replace(text, "iota", strconv.Itoa(iota), 1)
	case len(words) > 0:
		return text
	}
	tv, err := types.Eval(p.fset, nil, token.NoPos, value)
	if err != nil || tv.Value == nil {
		return text
	}
	return tv.Value.ExactString()
}

func (p *apiPackage) typ(d *ast.GenDecl, spec *ast.TypeSpec) []apiDecl {
	if !spec.Name.IsExported() {
		return nil
	}
	text := "type " + spec.Name.Name + p.typeParams(spec.TypeParams)
	if spec.Assign.IsValid() {
		text += " ="
	}
	whole := apiDecl{pos: spec.Pos(), text: text, commented: spec.Doc != nil || d.Doc != nil && len(d.Specs) == 1}
	var all []apiDecl
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		whole.text += " struct"
		for _, f := range typ.Fields.List {
			for _, name := range exportedNames(f) {
				whole.parts = append(whole.parts, whole.text+", "+strings.TrimSpace(name+" "+p.print(f.Type)))
			}
		}
	case *ast.InterfaceType:
		whole.text += " interface"
		for _, f := range typ.Methods.List {
			if len(f.Names) > 0 && !f.Names[0].IsExported() {
				whole.parts = append(whole.parts, whole.text+", unexported methods")
				continue
			}
			part := p.print(f.Type)
			commented := true // an embedded interface
			if len(f.Names) > 0 {
				part = f.Names[0].Name + strings.TrimPrefix(part, "func")
				// The comment of a small interface can speak of each method.
				commented = f.Doc != nil || f.Comment != nil || whole.commented && len(typ.Methods.List) <= 3
			}
			all = append(all, apiDecl{pos: f.Pos(), text: whole.text + ", " + part, commented: commented})
		}
		whole.parts = slices.Compact(whole.parts)
	default:
		whole.text += " " + p.print(typ)
	}
	return append(all, whole)
}

// exportedNames returns the exported names of a field, with an empty one for an
// embedded type that is exported.
func exportedNames(f *ast.Field) []string {
	var all []string
	for _, name := range f.Names {
		if name.IsExported() {
			all = append(all, name.Name)
		}
	}
	if len(f.Names) == 0 && ast.IsExported(apiTypeName(f.Type)) {
		all = append(all, "")
	}
	return all
}

// apiTypeName returns the name of a type without pointer, package and arguments.
func apiTypeName(x ast.Expr) string {
	for {
		switch y := x.(type) {
		case *ast.Ident:
			return y.Name
		case *ast.SelectorExpr:
			return y.Sel.Name
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		default:
			return ""
		}
	}
}

func (p *apiPackage) typeParams(list *ast.FieldList) string {
	if list == nil {
		return ""
	}
	var all []string
	for _, f := range list.List {
		for _, name := range f.Names {
			all = append(all, name.Name+" "+p.print(f.Type))
		}
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// print returns the source of a node in one line, without comments.
func (p *apiPackage) print(n ast.Node) string {
	ast.Inspect(n, func(n ast.Node) bool {
		if f, ok := n.(*ast.Field); ok {
			f.Doc, f.Comment = nil, nil
		}
		return true
	})
	var buf bytes.Buffer
	if err := printer.Fprint(&buf, token.NewFileSet(), n); err != nil {
		return fmt.Sprintf("%T: %v", n, err)
	}
	return strings.Join(strings.Fields(buf.String()), " ")
}

// apiDiff returns what is only in one of two lists, sorted.
func apiDiff(old, now []string) []string {
	marks := make(map[string]string)
	for _, line := range old {
		marks[line] = "- "
	}
	for _, line := range now {
		if _, both := marks[line]; both {
			delete(marks, line)
		} else {
			marks[line] = "+ "
		}
	}
	lines := slices.Sorted(maps.Keys(marks))
	for i, line := range lines {
		lines[i] = marks[line] + line
	}
	if len(lines) == 0 {
		return []string{"the lines are in another order, or some stand there twice"}
	}
	return lines
}
