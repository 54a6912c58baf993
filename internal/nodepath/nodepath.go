// Package nodepath has functions on the paths of nodes, and the path of a recipe (Path).
package nodepath

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-coord/coord/backend"
)

// Base returns the last segment of a path.
func Base(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// Parent returns the path of the parent directory of a node.
func Parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

// most is the greatest length of a path in bytes, the namespace included. Every error
// of a recipe carries its path.
const most = 4096

// Check returns the reason why a path is invalid on every service, or nil.
func Check(path string) error {
	if len(path) > most {
		return fmt.Errorf("%w: the path has %d bytes, limit %d", backend.ErrBadPath, len(path), most)
	}
	return errors.Unwrap(backend.CheckPath(path))
}

// Short truncates a path that Check refuses for its length.
func Short(path string) string {
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:most], "") + "…"
}

// Path is the path of a recipe with the namespace before it, or the reason why it
// is invalid. Constructors make it, and the first call reports the error.
type Path struct {
	given string
	full  string
	err   error
}

// New returns the path of a recipe: given is the path from the program, and full the same path with the
// namespace before it. err is the reason why it is invalid, or nil.
func New(given, full string, err error) Path {
	if err != nil {
		given, full = Short(given), Short(full) // used in errors only
	}
	return Path{given, full, err}
}

// Full returns the path with the namespace.
func (p Path) Full() string { return p.full }

// Given returns the path as the program gave it.
func (p Path) Given() string { return p.given }

// Err returns the reason why the path is invalid, or nil.
func (p Path) Err() error { return p.err }

// Refuse makes the path invalid for the reason err. An earlier reason stays.
func (p *Path) Refuse(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Check returns the error that op reports if the path is invalid, or nil.
func (p *Path) Check(op string) error {
	if p.err == nil {
		return nil
	}
	return &backend.Error{Op: op, Path: p.given, Err: p.err}
}
