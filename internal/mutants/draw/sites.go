package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A site is one small change of a source file: the bytes from begin to end are
// replaced. It may fail to build, since it is found without types.
type site struct {
	file       string // from the root of the module, with slashes
	line       int
	begin, end int
	kind       kind
	old, new   string
}

// kind is the operator that makes a mutant.
type kind string

const (
	swapped    kind = "operator swapped"
	dropped    kind = "operand dropped"
	always     kind = "condition always holds"
	never      kind = "condition never holds"
	noCall     kind = "call dropped"
	noError    kind = "error not returned"
	offByOne   kind = "constant one higher"
	noAssign   kind = "assignment dropped"
	noDefer    kind = "deferred call dropped"
	otherBreak kind = "continue instead of break, or the other way round"
)

func (s site) String() string {
	return fmt.Sprintf("%s:%d: %s: %s  =>  %s", s.file, s.line, s.kind, oneLine(s.old), oneLine(s.new))
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 80 {
		text = text[:80] + "…"
	}
	return strconv.Quote(text)
}

// apply returns the source with the change.
func (s site) apply(src []byte) []byte {
	return slices.Concat(src[:s.begin], []byte(s.new), src[s.end:])
}

var swaps = map[token.Token]string{
	token.EQL: "!=", token.NEQ: "==",
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.LAND: "||", token.LOR: "&&",
	token.ADD: "-", token.SUB: "+", token.INC: "--", token.DEC: "++",
}

// sitesOf returns the places of a file where a mutant can be made.
func sitesOf(name string, src []byte) ([]site, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []site
	at := func(p token.Pos) int { return files.Position(p).Offset }
	add := func(k kind, begin, end token.Pos, replacement string) {
		found = append(found, site{
			file: name, line: files.Position(begin).Line, begin: at(begin), end: at(end),
			kind: k, old: string(src[at(begin):at(end)]), new: replacement,
		})
	}
	text := func(n ast.Node) string { return string(src[at(n.Pos()):at(n.End())]) }
	condition := func(e ast.Expr) {
		// The condition is still evaluated, with what it does.
		add(always, e.Pos(), e.End(), "("+text(e)+") || true")
		add(never, e.Pos(), e.End(), "("+text(e)+") && false")
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR // no constants, types and imports
		case *ast.BinaryExpr:
			if op, ok := swaps[n.Op]; ok {
				add(swapped, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), op)
			}
			if n.Op == token.LAND || n.Op == token.LOR {
				add(dropped, n.X.Pos(), n.Y.Pos(), "")
				add(dropped, n.X.End(), n.Y.End(), "")
			}
		case *ast.IncDecStmt:
			add(swapped, n.TokPos, n.End(), swaps[n.Tok])
		case *ast.IfStmt:
			condition(n.Cond)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						condition(e)
					}
				}
			}
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && !tells(call) {
				add(noCall, n.Pos(), n.End(), "")
			}
		case *ast.DeferStmt:
			add(noDefer, n.Pos(), n.End(), "")
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE && !blank(n.Lhs) {
				add(noAssign, n.Pos(), n.End(), strings.Repeat("_, ", len(n.Lhs)-1)+"_ = "+values(text, n))
			}
		case *ast.ReturnStmt:
			if k := len(n.Results); k > 0 {
				if e, ok := n.Results[k-1].(*ast.Ident); ok && e.Name == "err" {
					add(noError, e.Pos(), e.End(), "nil")
				}
			}
		case *ast.BasicLit:
			if n.Kind == token.INT && len(n.Value) < 4 {
				if v, err := strconv.Atoi(n.Value); err == nil {
					add(offByOne, n.Pos(), n.End(), strconv.Itoa(v+1))
				}
			}
		case *ast.BranchStmt:
			if n.Label == nil && n.Tok == token.CONTINUE {
				add(otherBreak, n.Pos(), n.End(), "break")
			}
			if n.Label == nil && n.Tok == token.BREAK {
				add(otherBreak, n.Pos(), n.End(), "continue")
			}
		}
		return true
	})
	return found, nil
}

// values is the right side of an assignment, with the left side's old value for an
// operator such as +=.
func values(text func(ast.Node) string, n *ast.AssignStmt) string {
	var all []string
	for _, e := range n.Rhs {
		all = append(all, text(e))
	}
	return strings.Join(all, ", ")
}

func blank(left []ast.Expr) bool {
	for _, e := range left {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// tells reports whether a call writes to the log or panics, which no mutant drops.
func tells(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic"
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.SelectorExpr); ok {
			return x.Sel.Name == "log"
		}
		id, ok := f.X.(*ast.Ident)
		return ok && id.Name == "log"
	}
	return false
}

// areas divide the files, so that each recipe and each backend has its share of a
// draw, however long its files are. The longest prefix counts.
var areas = map[string]string{
	"line": "locks", "lock": "locks", "hold": "locks", "lock_semaphore": "semaphore",
	"election": "election", "group": "group", "barrier": "barriers", "queue": "queues",
	"value": "values", "counter": "values", "cache": "cache", "txn": "transactions",
	"inspect": "inspection", "trace": "events",
	"backend/memory/": "memory", "backend/zookeeper/": "zookeeper",
}

func areaOf(file string) string {
	best := ""
	for prefix := range areas {
		if strings.HasPrefix(file, prefix) && len(prefix) > len(best) {
			best = prefix
		}
	}
	if best == "" {
		return "client"
	}
	return areas[best]
}

// order shuffles the sites, and then takes one of each area in turn.
func order(all []site, seed uint64) []site {
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	piles := make(map[string][]site)
	for _, s := range all {
		a := areaOf(s.file)
		piles[a] = append(piles[a], s)
	}
	names := make([]string, 0, len(piles))
	for a := range piles {
		names = append(names, a)
	}
	slices.Sort(names)
	var drawn []site
	for len(drawn) < len(all) {
		for _, a := range names {
			if p := piles[a]; len(p) > 0 {
				drawn, piles[a] = append(drawn, p[0]), p[1:]
			}
		}
	}
	return drawn
}

// packageOf is the directory of a file as an argument of go test.
func packageOf(file string) string { return "./" + path.Dir(file) }
