package layout

import (
	"errors"

	"github.com/go-coord/coord/backend"
)

// PinState says whether a Value, a Counter or a Barrier has a pin, see Pin.
type PinState int8

const (
	NoPin     PinState = iota // the node was created by a recipe of one node, so it is persistent
	PinNeeded                 // the node can be a container: a write of it creates a pin in the same commit
	Pinned                    // there is a pin, and a write checks it
)

// Ops returns the operations beside a write of the node at path.
func (p PinState) Ops(path string) []backend.Op {
	switch p {
	case PinNeeded:
		return []backend.Op{backend.Create(path+"/"+Pin, nil, backend.Persistent)}
	case Pinned:
		return []backend.Op{backend.Check(path+"/"+Pin, backend.AnyVersion)}
	}
	return nil
}

// AtPin reports whether a commit failed because of the pin of the node at path.
func AtPin(err error, path string) bool {
	var e *backend.Error
	return errors.As(err, &e) && e.Path == path+"/"+Pin
}

// UsedAsDir reports whether a node can be a container with data: it is one, or has had a child. A
// node that was created as a Value has had none. Nor has a container before its first child, which its
// maker creates next: if a client that remembers a Value there writes into it in between, and dies before
// it makes the pin, the node is taken for one that was created as a Value.
func UsedAsDir(stat backend.Stat) bool {
	return stat.Container || stat.Cversion != 0 || stat.NumChildren > 0
}
