// Package kinds has the rules by which one path belongs to one kind of recipe, and the client's knowledge of
// the paths (Table): which kind of recipe has a path, and whether a creation there may write the mark.
// Package core reads and examines the directories.
//
//	kinds.go   the rules; RecipeDir and DirState
//	table.go   Table
package kinds

import (
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// One path, one recipe: with these rules two kinds of recipes never share a path.
//
// Every kind of recipe has a name. The directory that a recipe creates carries it as
// its data, the mark: "coord recipe: mutex". A client reads the node at a path at its
// first use, again when the directory has been missing, and again before it makes a
// missing part of its recipe there, such as the directory of the requests for permits.
// It refuses the path with a KindError, before it writes, if it finds
//
//   - the mark of another kind;
//   - the nodes of another kind: see layout.KindOfName for the names in one directory, and
//     layouts and parts there for the recipes of several nodes;
//   - data that is no mark in a node that never had a child: a Value or a Counter;
//   - no data in a node that never had a child and was written since its creation: a
//     Value of no bytes. No other recipe writes empty data; a Value that is created
//     empty is written twice.
//
// A directory above recipes carries the mark "coord recipe: directory": it is free for every
// recipe, and no Value, Counter or Barrier is set there. A Value, Counter or Barrier that is set in a
// directory has a pin, see layout.Pin, since ZooKeeper does not report whether a node is a container,
// which it collects with its data. The commit that sets the recipe creates the pin, and it is deleted by
// the commit that makes the node a directory again; a write at any version checks it. So no
// acknowledged data is in a container without a child, which the service may collect. The comment of
// layout.UsedAsDir describes the one exception.
//
// Directories without a mark come from Curator, from kazoo and from versions of this
// library that wrote none. If such a directory has no data, the first creation of a
// node in it writes the mark at the version that was read, so if two kinds come at
// once, the second one fails and looks again. If it has data and had children before,
// it is used, and its data is left alone. Curator, kazoo and those versions ignore the
// data of a directory.
//
// The mark also keeps an uncontended acquisition at one round trip: the commit that
// creates the node says that the directory carries the mark (backend.Carry), and the reply of every service
// then has the number of siblings. The client sends a Carry only if it has found the mark
// there. A service whose Carry writes nothing refuses the commit if the node has other data, and
// the client looks again. ZooKeeper's backend writes the mark once more, at
// any version, since each contender raises the version. So data can be lost if something
// other than a recipe of this package writes it over the mark of a directory in use: the
// next creation of each client that has looked before replaces it. That client detects the
// loss: each creation raises the version of the directory by one and its number of
// creations by one, while a foreign write raises only the version. It logs the loss and does not write
// there any more. (A creation by a client of another implementation can hide such a write, since it raises
// only the number of creations.) Likewise a directory that is deleted, and created
// again as something else, is overwritten once by a client that knew it before. From
// the Stat that client learns that the directory is another one. It lists the
// directory, and if nodes of another kind are in it, it removes its node and its mark,
// and refuses. Until then the directory does not count as known, and if the call ends first, the
// client does this in the background. If there are no such nodes, as in a lock without holders,
// the client has taken the path over; a Value that was created there is then refused at its
// next read.
//
// Exclusion does not depend on the mark. A contender that is not alone in the directory
// of a line lists it before it is granted, and withdraws if a contender of another kind
// came before it, or if a recipe of several nodes has nodes there. So of two kinds on one
// path only the first one is granted, also if the mark is missing, denied or overwritten.

// maxDirs bounds the number of directories that a client remembers.
const maxDirs = 4096

// Remember sets (*m)[dir] to v, and makes the map if it is nil. If the map has the maximum of directories, Remember
// first forgets an arbitrary one. If it forgot all of them at once, a client that uses a few more paths than
// that in turn would never know any of them.
func Remember[V any](m *map[string]V, dir string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	if len(*m) >= maxDirs {
		for other := range *m {
			delete(*m, other)
			break
		}
	}
	(*m)[dir] = v
}

// RecipeDir is a path that a recipe uses.
type RecipeDir struct {
	Dir    string
	Recipe layout.RecipeKind

	// If the directory is a part of a recipe further up: the path and the kind of that recipe.
	top   string
	whole layout.RecipeKind
}

// NewRecipeDir returns the directory of a recipe that is no part of another one.
func NewRecipeDir(dir string, recipe layout.RecipeKind) RecipeDir {
	return RecipeDir{Dir: dir, Recipe: recipe}
}

// Part returns the recipe directory of a directory of the recipe at g. If g is zero, the
// directory is a recipe of its own.
func (g RecipeDir) Part(dir string, recipe layout.RecipeKind) RecipeDir {
	return RecipeDir{Dir: dir, Recipe: recipe, top: g.Dir, whole: g.Recipe}
}

// Whole returns the recipe of which g is a part. ok is false if g is no part.
func (g RecipeDir) Whole() (whole RecipeDir, ok bool) {
	return NewRecipeDir(g.top, g.whole), g.whole != ""
}

// Leaf reports whether the recipe of g is a single node with data of the user.
func (g RecipeDir) Leaf() bool { return g.Recipe == layout.KindValue || g.Recipe == layout.KindCounter }

// DirState is a client's knowledge of a recipe directory.
type DirState struct {
	Kind    layout.RecipeKind
	Mark    []byte // the data that a creation may write; nil: none
	Version int32  // the version for that write: AnyVersion if the directory carries the mark
	Czxid   int64  // 0: not known
	foreign bool   // that write overwrites foreign data

	// Of a Value, a Counter or a Barrier.
	Directory bool // nothing is set: the node is a directory, see layout.IsDirectory
	Pin       layout.PinState
	Plain     bool // nothing shows that the library has made the node as a directory

	// drift is the number of writes of the directory less the number of creations in it, as of the
	// commit zxid. A creation raises both numbers.
	drift int64
	zxid  int64
}

// Write returns the operation that accompanies a creation in dir and makes sure that dir has the mark.
func (f *DirState) Write(dir string) backend.Op {
	if f.Version == backend.AnyVersion {
		return backend.Carry(dir, f.Mark)
	}
	return backend.SetData(dir, f.Mark, f.Version)
}

// Found returns the state of g as it was read with stat. The caller sets the mark, and the fields for values.
func Found(g RecipeDir, stat backend.Stat) DirState {
	return DirState{
		Kind: g.Recipe, Czxid: stat.Czxid, Version: stat.Version, zxid: stat.AsOf,
		// Cversion is twice the creations, less the children. Without it the drift is too
		// high, and foreign writes are not noticed.
		drift: int64(stat.Version) - (int64(stat.Cversion)+int64(stat.NumChildren))/2,
	}
}
