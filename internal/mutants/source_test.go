package mutants

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
)

const root = "../.."

// repository has the declarations that rows name.
type repository struct {
	packages map[string]bool           // the names of the packages
	decls    map[string][]*declaration // by name in lower case, with and without the package
}

// declaration is a function, constant, variable or type.
type declaration struct {
	title    string // for messages, as in core.(*Hold).Release
	file     string // in the repository
	pkg      string
	source   string // of the file
	from, to int
	body     []int  // the ends of the body of a function without labels
	action   bool   // a function without results
	words    []word // set when a row is compared with them
}

func (d *declaration) isTest() bool { return strings.HasSuffix(d.file, "_test.go") }

// A place is a mutant and the text that it replaces.
type place struct {
	*mutant
	*declaration
	begin, end int
	text       string // instead of that
	folder     string // of the test
	number     int    // by which the mutant is turned on, if it can be
}

// changed returns the text of the file with the defect.
func (p *place) changed() string { return p.source[:p.begin] + p.text + p.source[p.end:] }

// here is this repository.
var here = sync.OnceValues(func() (*repository, error) { return read(os.DirFS(root)) })

// read reads the files that are built on this platform.
func read(from fs.FS) (*repository, error) {
	r := &repository{make(map[string]bool), make(map[string][]*declaration)}
	platform := build.Default
	platform.OpenFile = func(name string) (io.ReadCloser, error) { return from.Open(name) }
	return r, fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		switch base := path.Base(name); {
		case err != nil:
			return err
		case d.IsDir() && (base == "testdata" || len(base) > 1 && base[0] == '.'):
			return fs.SkipDir
		case d.IsDir() || path.Ext(base) != ".go":
			return nil
		}
		if built, err := platform.MatchFile(path.Dir(name), path.Base(name)); err != nil || !built {
			return err
		}
		source, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		return r.add(name, string(source))
	})
}

// add adds the declarations of a file.
func (r *repository) add(file, source string) error {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg := strings.TrimSuffix(f.Name.Name, "_test")
	r.packages[pkg] = r.packages[pkg] || pkg != "main"
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	add := func(n ast.Node, receiver, name string) *declaration {
		d := &declaration{title: pkg + "." + receiver + name, file: file, pkg: pkg, source: source, from: at(n.Pos()), to: at(n.End())}
		for _, key := range []string{strings.ToLower(name), strings.ToLower(pkg + "." + name)} {
			r.decls[key] = append(r.decls[key], d)
		}
		return d
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.File, *ast.GenDecl:
			return true
		case *ast.TypeSpec:
			add(n, "", n.Name.Name)
		case *ast.ValueSpec:
			for _, name := range n.Names {
				add(n, "", name.Name)
			}
		case *ast.FuncDecl:
			receiver := ""
			if n.Recv != nil {
				receiver, _, _ = strings.Cut(types.ExprString(n.Recv.List[0].Type), "[")
				if receiver[0] == '*' {
					receiver = "(" + receiver + ")"
				}
				receiver += "."
			}
			d, labels := add(n, receiver, n.Name.Name), false
			ast.Inspect(n, func(n ast.Node) bool {
				_, label := n.(*ast.LabeledStmt)
				labels = labels || label
				return true
			})
			if n.Body != nil && !labels {
				d.body, d.action = []int{at(n.Body.Lbrace) + 1, at(n.Body.Rbrace)}, n.Type.Results == nil
			}
		}
		return false
	})
	return nil
}

// A word is a token, with the name of the package that qualifies it.
type word struct {
	text       string
	begin, end int    // in the text that has it
	key        string // what is compared
	selected   bool   // behind a dot
	qualified  bool
}

// words returns a text as words. It leaves out semicolons, and the comma at the end of a list,
// which depend on the line breaks.
func (r *repository) words(text string) (all []word) {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, 0)
	for pos, tok, lit := s.Scan(); tok != token.EOF; pos, tok, lit = s.Scan() {
		w, n := word{text: cmp.Or(lit, tok.String()), begin: file.Offset(pos)}, len(all)
		w.end, w.key = w.begin+len(w.text), w.text
		switch tok {
		case token.SEMICOLON:
			continue
		case token.RPAREN, token.RBRACE, token.RBRACK:
			if n > 0 && all[n-1].key == "," {
				all = all[:n-1]
			}
		case token.IDENT:
			w.key, w.selected = strings.ToLower(w.text), n > 0 && all[n-1].key == "."
			if w.selected && n > 1 && r.packages[all[n-2].text] && !all[n-2].selected {
				w.begin, w.selected, w.qualified = all[n-2].begin, false, true
				w.text, all = text[w.begin:w.end], all[:n-2]
			}
		}
		all = append(all, w)
	}
	return all
}

// find returns the words of a declaration that are those of a pattern.
func (r *repository) find(d *declaration, pattern []word) (found [][]word) {
	if d.words == nil {
		d.words = r.words(d.source[d.from:d.to])
	}
	for i := range len(d.words) - len(pattern) + 1 {
		there := d.words[i : i+len(pattern)]
		if slices.EqualFunc(there, pattern, func(w, p word) bool { return w.key == p.key && !(w.selected && p.qualified) }) {
			found = append(found, there)
		}
	}
	return found
}

// spell returns a text with each word of the pattern as it is spelt where the pattern was found.
func (r *repository) spell(text string, pattern, found []word) string {
	type spelling struct {
		text     string
		selected bool // x in y.x is not x
	}
	there := make(map[spelling]string)
	for i, p := range pattern {
		there[spelling{p.text, p.selected}] = found[i].text
	}
	for _, w := range slices.Backward(r.words(text)) {
		text = text[:w.begin] + cmp.Or(there[spelling{w.text, w.selected}], w.text) + text[w.end:]
	}
	return text
}

// place returns the text that a mutant replaces.
func (r *repository) place(m *mutant) (*place, error) {
	var places []*place
	pattern := r.words(m.old)
	for _, d := range r.decls[strings.ToLower(m.decl)] {
		for _, at := range r.find(d, pattern) {
			if !d.isTest() {
				places = append(places, &place{mutant: m, declaration: d, begin: d.from + at[0].begin, end: d.from + at[len(at)-1].end, text: r.spell(m.new, pattern, at)})
			}
		}
	}
	switch {
	case len(places) == 1:
		return places[0], nil
	case len(places) > 1:
		return nil, fmt.Errorf("%s: %q is %d times in %s: make it longer, or add the package to the name", m.name, m.old, len(places), m.decl)
	}
	elsewhere := make(map[string]bool)
	for _, named := range r.decls {
		for _, d := range named {
			if !d.isTest() && len(r.find(d, pattern)) > 0 {
				elsewhere[d.title] = true
			}
		}
	}
	titles := slices.Sorted(maps.Keys(elsewhere))
	return nil, fmt.Errorf("%s: %q is not in %s: name the declaration that has it now (%d have it: %q), or write it as the source is now",
		m.name, m.old, m.decl, len(titles), titles[:min(3, len(titles))])
}

// folder returns the folder of a mutant's test.
func (r *repository) folder(m *mutant) (string, error) {
	names := strings.Split(m.test, "/")
	var in []string
	for _, d := range r.decls[strings.ToLower(names[0])] {
		if d.isTest() {
			in = append(in, path.Dir(d.file))
		}
	}
	switch {
	case len(in) == 0, len(names) > 1 && ast.IsExported(names[1]) && r.decls[strings.ToLower(names[1])] == nil: // a suite's subtest is a method
		return "", fmt.Errorf("%s: there is no test %s", m.name, m.test)
	case len(in) > 1:
		return "", fmt.Errorf("%s: %s is in %q: add the package to its name", m.name, names[0], in)
	}
	return in[0], nil
}
