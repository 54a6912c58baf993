package cell

import (
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// A Node is a node with data that any number of clients read and write: a Value, a Counter, or a node
// of another program that a transaction sets.
type Node struct {
	c    *core.Client
	path nodepath.Path
	kind layout.RecipeKind
}

// New returns the node at path. It does no I/O; Check reports a bad path.
func New(c *core.Client, path string, kind layout.RecipeKind) *Node {
	return &Node{c: c, path: c.Path(path), kind: kind}
}

// FullPath returns the path of the node, with the namespace.
func (n *Node) FullPath() string { return n.path.Full() }

// Check returns the error that op reports for a bad path.
func (n *Node) Check(op string) error { return n.path.Check(op) }

// Content is the data of a Node at one time, and its identity.
type Content struct {
	Data    []byte
	Czxid   int64 // 0: there is no value; -1, with Version -1: a write whose result is not known
	Version int32
	Mzxid   int64

	at kinds.DirState // the state of the node that the read has found; zero: not known
}

func (x Content) same(y Content) bool { return x.Czxid == y.Czxid && x.Mzxid == y.Mzxid }

func (n *Node) recipeDir() kinds.RecipeDir { return kinds.NewRecipeDir(n.path.Full(), n.kind) }
