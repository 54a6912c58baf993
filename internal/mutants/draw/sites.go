package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// A site is a place where a mutant is made. The changed source contains both versions, the
// original and the mutant, which the environment turns on. Text is only inserted, around a
// node, so that sites can be nested and lines keep their numbers.
type site struct {
	number     int
	file       string // from the root of the module, with slashes
	line       int
	begin, end int // of the node
	kind       kind
	text       string // of the node
	open, shut string // around it; %d is the number
	decl       [2]int // the lines of the declaration that it is in
}

// kind is the operator that makes a mutant.
type kind string

const (
	negated  kind = "comparison negated"
	bound    kind = "bound moved by one"
	andOr    kind = "&& and || swapped"
	dropped  kind = "operand dropped"
	plus     kind = "+ and - swapped"
	always   kind = "condition always holds"
	never    kind = "condition never holds"
	noCall   kind = "call dropped"
	noDefer  kind = "deferred call dropped"
	noAssign kind = "assignment dropped"
	noError  kind = "error not returned"
	offByOne kind = "constant one higher"
	leaps    kind = "break and continue swapped"
)

// risky kinds can fail to build, since sites are found without types.
func (k kind) risky() bool {
	switch k {
	case plus, noError, offByOne, leaps, noAssign:
		return true
	}
	return false
}

func (s *site) String() string {
	text := strings.Join(strings.Fields(s.text), " ")
	if len(text) > 90 {
		text = text[:90] + "…"
	}
	return fmt.Sprintf("%s:%d: %s: %s", s.file, s.line, s.kind, text)
}

// support is the code that the changed source calls, in each package. On request a test
// records the sites that it reaches.
const support = `
import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

var mutantOn, _ = strconv.Atoi(os.Getenv("COORD_MUTANT"))

var mutantSites struct {
	once sync.Once
	file *os.File
	seen sync.Map
}

func mutant(n int) bool {
	if mutantOn < 0 {
		mutantSites.once.Do(func() {
			mutantSites.file, _ = os.OpenFile(os.Getenv("COORD_MUTANT_SITES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		})
		if _, old := mutantSites.seen.LoadOrStore(n, true); !old {
			fmt.Fprintln(mutantSites.file, n)
		}
	}
	return n == mutantOn
}

func mutantError(n int, err error) error {
	if mutant(n) {
		return nil
	}
	return err
}

func mutantOther[T any](n int, original, other T) T {
	if mutant(n) {
		return other
	}
	return original
}
`

// sitesOf returns the places in a file where a mutant can be made.
func sitesOf(name string, src []byte) ([]*site, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []*site
	at := func(p token.Pos) int { return files.Position(p).Offset }
	text := func(n ast.Node) string { return string(src[at(n.Pos()):at(n.End())]) }
	add := func(n ast.Node, k kind, open, shut string) {
		found = append(found, &site{
			file: name, line: files.Position(n.Pos()).Line, begin: at(n.Pos()), end: at(n.End()),
			kind: k, text: text(n), open: open, shut: shut,
		})
	}
	// copied returns text that is evaluated twice, so only that of expressions without calls.
	copied := func(n ast.Node) (string, bool) {
		t := text(n)
		return strings.Join(strings.Fields(t), " "), pure(n) && !strings.ContainsAny(t, "`") && !strings.Contains(t, "//")
	}
	condition := func(e ast.Expr) {
		add(e, always, "((", ") || mutant(%d))")
		add(e, never, "((", ") && !mutant(%d))")
	}
	statement := func(n ast.Stmt) {
		const open, shut = "if !mutant(%d) { ", " }"
		switch n := n.(type) {
		case *ast.ExprStmt:
			if call, ok := n.X.(*ast.CallExpr); ok && !tells(call) {
				add(n, noCall, open, shut)
			}
		case *ast.DeferStmt:
			add(n, noDefer, open, shut)
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE && !blank(n.Lhs) {
				add(n, noAssign, open, shut)
			}
		case *ast.IncDecStmt:
			add(n, noAssign, open, shut)
		case *ast.BranchStmt:
			if n.Label == nil && (n.Tok == token.CONTINUE || n.Tok == token.BREAK) {
				other := "break"
				if n.Tok == token.BREAK {
					other = "continue"
				}
				add(n, leaps, "if mutant(%d) { "+other+" }; ", "")
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR // no constants, types and imports
		case *ast.BlockStmt:
			for _, s := range n.List {
				statement(s)
			}
		case *ast.CaseClause:
			for _, s := range n.Body {
				statement(s)
			}
		case *ast.CommClause:
			for _, s := range n.Body {
				statement(s)
			}
		case *ast.BinaryExpr:
			x, xPure := copied(n.X)
			y, yPure := copied(n.Y)
			both := xPure && yPure
			switch n.Op {
			case token.EQL, token.NEQ:
				add(n, negated, "((", ") != mutant(%d))")
			case token.LSS, token.GTR:
				if both {
					add(n, bound, "((", ") || mutant(%d) && "+x+" == "+y+")")
				}
			case token.LEQ, token.GEQ:
				if both {
					add(n, bound, "((", ") && !(mutant(%d) && "+x+" == "+y+"))")
				}
			case token.ADD:
				if both {
					add(n, plus, "mutantOther(%d, ", ", "+x+" - ("+y+"))")
				}
			case token.SUB:
				if both {
					add(n, plus, "mutantOther(%d, ", ", "+x+" + "+y+")")
				}
			case token.LAND:
				add(n.X, dropped, "((", ") || mutant(%d))")
				add(n.Y, dropped, "((", ") || mutant(%d))")
				if both {
					add(n, andOr, "((", ") || mutant(%d) && ("+x+" || "+y+"))")
				}
			case token.LOR:
				add(n.X, dropped, "((", ") && !mutant(%d))")
				add(n.Y, dropped, "((", ") && !mutant(%d))")
				if both {
					add(n, andOr, "((", ") && (!mutant(%d) || ("+x+" && "+y+")))")
				}
			}
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
		case *ast.ReturnStmt:
			if k := len(n.Results); k > 0 {
				if e, ok := n.Results[k-1].(*ast.Ident); ok && e.Name == "err" {
					add(e, noError, "mutantError(%d, ", ")")
				}
			}
		case *ast.BasicLit:
			if n.Kind == token.INT && len(n.Value) < 4 {
				if v, err := strconv.Atoi(n.Value); err == nil {
					add(n, offByOne, "mutantOther(%d, ", fmt.Sprintf(", %d)", v+1))
				}
			}
		}
		return true
	})
	for _, d := range f.Decls {
		lines := [2]int{files.Position(d.Pos()).Line, files.Position(d.End()).Line}
		for _, s := range found {
			if lines[0] <= s.line && s.line <= lines[1] {
				s.decl = lines
			}
		}
	}
	return found, nil
}

// pure reports whether an expression contains no call except len and cap, and no receive.
func pure(n ast.Node) bool {
	ok := true
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			id, is := n.Fun.(*ast.Ident)
			ok = ok && is && (id.Name == "len" || id.Name == "cap")
		case *ast.UnaryExpr:
			ok = ok && n.Op != token.ARROW
		case *ast.FuncLit:
			ok = false
		}
		return ok
	})
	return ok
}

func blank(left []ast.Expr) bool {
	for _, e := range left {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// tells reports whether a call writes to the log or panics; no mutant drops such a call.
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

// rewrite returns the source with all of its sites.
func rewrite(src []byte, sites []*site) []byte {
	type insertion struct {
		pos  int
		s    *site
		shut bool
	}
	var all []insertion
	for _, s := range sites {
		all = append(all, insertion{s.begin, s, false}, insertion{s.end, s, true})
	}
	slices.SortFunc(all, func(a, b insertion) int {
		switch {
		case a.pos != b.pos:
			return a.pos - b.pos
		case a.shut != b.shut:
			if a.shut {
				return -1 // a site that ends here ends before the next begins
			}
			return 1
		case a.shut && a.s.begin != b.s.begin:
			return b.s.begin - a.s.begin // the inner one first
		case a.shut:
			return b.s.number - a.s.number
		case a.s.end != b.s.end:
			return b.s.end - a.s.end // the outer one first
		}
		return a.s.number - b.s.number
	})
	var out []byte
	from := 0
	for _, in := range all {
		out = append(out, src[from:in.pos]...)
		from = in.pos
		text := in.s.open
		if in.shut {
			text = in.s.shut
		}
		out = append(out, strings.ReplaceAll(text, "%d", strconv.Itoa(in.s.number))...)
	}
	return append(out, src[from:]...)
}

// areas divide the files, so that each recipe and each backend has its share of a draw,
// regardless of the length of its files. The longest prefix counts.
var areas = map[string]string{
	"lock": "locks", "hold": "locks", "mutex": "locks", "rwmutex": "locks", "internal/line/": "locks",
	"internal/contender/": "locks", "internal/holdset/": "locks",
	"semaphore": "semaphore", "internal/semaphore/": "semaphore",
	"election": "election", "internal/election/": "election", "group": "group", "internal/group/": "group",
	"shards": "shards", "internal/shards/": "shards", "internal/assign/": "shards",
	"schedule": "schedule", "internal/schedule/": "schedule",
	"barrier": "barriers", "internal/barrier/": "barriers", "doublebarrier": "barriers", "internal/doublebarrier/": "barriers",
	"queue": "queues", "internal/queue/": "queues", "internal/queuestat/": "queues",
	"value": "values", "counter": "values", "internal/cell/": "values",
	"cache": "cache", "internal/mirror/": "cache",
	"txn": "transactions", "twophase": "transactions", "internal/txn/": "transactions", "internal/twophase/": "transactions",
	"inspect/": "inspection", "internal/layout/": "layout",
	"backend/memory/": "memory", "backend/zookeeper/": "zookeeper", "backend/etcd/": "etcd", "backend/postgres/": "postgres",
	"lifecycle/": "adapters", "gocronlock/": "adapters", "grpcresolver/": "adapters",
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
func order(all []*site, seed uint64) []*site {
	all = slices.Clone(all)
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	piles := make(map[string][]*site)
	for _, s := range all {
		a := areaOf(s.file)
		piles[a] = append(piles[a], s)
	}
	names := make([]string, 0, len(piles))
	for a := range piles {
		names = append(names, a)
	}
	slices.Sort(names)
	var drawn []*site
	for len(drawn) < len(all) {
		for _, a := range names {
			if p := piles[a]; len(p) > 0 {
				drawn, piles[a] = append(drawn, p[0]), p[1:]
			}
		}
	}
	return drawn
}
