package coord_test

import (
	"bufio"
	"bytes"
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
	"slices"
	"strings"
	"testing"
)

// The layers of the package, lowest first.
const (
	clientLayer = iota
	engineLayer
	recipeLayer
)

// layers has the files of each layer by the first words of their names. If several entries fit
// a file, the longest counts. Each entry of recipeLayer is a recipe, or a family of recipes
// that share their internals.
var layers = [...][]string{
	clientLayer: {"coord", "session", "hold", "create", "commit", "cleanup", "kinds", "errors",
		"follow", "trace", "codec", "usercode", "doc"},
	engineLayer: {"line", "cell", "slots"},
	recipeLayer: {"mutex", "rwmutex", "semaphore", "lock", "election", "group", "value", "counter", "cache", "barrier", "doublebarrier", "queue",
		"txn", "twophase", "shards"},
}

// borrowed has the internals of one recipe that another recipe uses. Remove entries that are no
// longer true; add none.
var borrowed = []string{
	"twophase uses Mutex.whole", // the lock of a site is a part of its recipe
	// Queues and values make operations of a Txn.
	"queue uses TxnOp.again", "queue uses TxnOp.applied", "queue uses TxnOp.err", "queue uses TxnOp.expand", "queue uses TxnOp.op", "queue uses TxnOp.path",
	"value uses setOp",
}

// strayMethods has the methods of the lowest layer's types that a recipe declares. Remove those
// that have moved; add none.
var strayMethods = []string{
	"Hold.endSuspended",
	"Hold.whenEnded",
	"session.attempts",
	"session.awaitFired",
	"session.readCandidate",
	"session.readLimit",
	"session.replace",
	"session.stand",
	"session.version",
}

// TestNoFileUsesAHigherLayer keeps the layers apart: a file uses nothing that a higher
// layer declares, and a recipe nothing of another but its exported names. Methods of a session,
// a client or a hold are declared with the lower layers.
func TestNoFileUsesAHigherLayer(t *testing.T) {
	x := checkCore(t)
	t.Run("every file has a layer", func(t *testing.T) {
		for _, f := range x.files {
			if layer, _ := x.place(f.Pos()); layer < 0 {
				t.Errorf("%s is in no layer: name it in layers", x.fset.Position(f.Pos()).Filename)
			}
		}
	})
	t.Run("uses", func(t *testing.T) {
		seen := make(map[string]bool)
		uses := 0
		for id, o := range x.info.Uses {
			o = origin(o)
			if o.Pkg() != x.pkg || o.Parent() != nil && o.Parent() != x.pkg.Scope() {
				continue // another package's, or local
			}
			uses++
			from, user := x.place(id.Pos())
			to, owner := x.place(o.Pos())
			switch what := x.name(o); {
			case to > from:
				t.Errorf("%s: %s is of a higher layer, see %s", x.fset.Position(id.Pos()), what, x.fset.Position(o.Pos()))
			case to == recipeLayer && from == recipeLayer && user != owner && !o.Exported():
				key := user + " uses " + what
				seen[key] = true
				if !slices.Contains(borrowed, key) {
					t.Errorf("%s: %s is another recipe's, see %s", x.fset.Position(id.Pos()), what, x.fset.Position(o.Pos()))
				}
			}
		}
		if uses < 1000 {
			t.Errorf("%d uses were looked at", uses)
		}
		for _, key := range borrowed {
			if !seen[key] {
				t.Errorf("%q is no longer true: remove it", key)
			}
		}
	})
	t.Run("methods", func(t *testing.T) {
		var stray []string
		for _, typ := range []string{"session", "Client", "Hold"} {
			named := x.pkg.Scope().Lookup(typ).Type().(*types.Named)
			for m := range named.Methods() {
				if layer, _ := x.place(m.Pos()); layer > engineLayer {
					stray = append(stray, x.name(m))
				}
			}
		}
		slices.Sort(stray)
		if !slices.Equal(stray, strayMethods) {
			t.Errorf("methods that recipes declare:\n%q, want\n%q", stray, strayMethods)
		}
	})
}

// core is the package with its types.
type core struct {
	fset  *token.FileSet
	files []*ast.File
	info  types.Info
	pkg   *types.Package
	owner map[types.Object]string // of fields, the type
}

func checkCore(t *testing.T) *core {
	t.Helper()
	dir, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	x := &core{fset: token.NewFileSet(), info: types.Info{Uses: make(map[*ast.Ident]types.Object)}, owner: make(map[types.Object]string)}
	for _, name := range dir.GoFiles {
		f, err := parser.ParseFile(x.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		x.files = append(x.files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(x.fset, "gc", compiled(t, dir.Imports))}
	x.pkg, err = conf.Check(modulePath, x.fset, x.files, &x.info)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range x.pkg.Scope().Names() {
		if s, ok := x.pkg.Scope().Lookup(name).Type().Underlying().(*types.Struct); ok {
			for f := range s.Fields() {
				x.owner[f] = name
			}
		}
	}
	return x
}

// compiled returns the compiled form of packages, and of their imports.
func compiled(t *testing.T, paths []string) importer.Lookup {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, paths...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		path, file, _ := strings.Cut(lines.Text(), " ")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}

// place returns the layer of the file at pos, or -1, and the entry of layers that fits it.
func (x *core) place(pos token.Pos) (layer int, entry string) {
	layer = -1
	file := strings.TrimSuffix(filepath.Base(x.fset.Position(pos).Filename), ".go")
	for i, entries := range layers {
		for _, e := range entries {
			if len(e) > len(entry) && (file == e || strings.HasPrefix(file, e+"_")) {
				layer, entry = i, e
			}
		}
	}
	return layer, entry
}

// origin returns the declaration of a method or a field of an instantiated type.
func origin(o types.Object) types.Object {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin()
	case *types.Var:
		return o.Origin()
	}
	return o
}

// name returns the name of o, behind that of its type if it is a method or a field.
func (x *core) name(o types.Object) string {
	typ := x.owner[o]
	if f, ok := o.(*types.Func); ok {
		if r := f.Signature().Recv(); r != nil {
			t := r.Type()
			if p, ok := t.(*types.Pointer); ok {
				t = p.Elem()
			}
			if n, ok := t.(*types.Named); ok {
				typ = n.Obj().Name()
			}
		}
	}
	if typ == "" {
		return o.Name()
	}
	return typ + "." + o.Name()
}
