package contender

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
)

// NumbersLeft returns how many sequence numbers follow seq.
func NumbersLeft(s *core.Session, seq int64) int64 { return s.Backend().Limits().Sequence - seq }

// IsHighNumber reports whether the directory of a node with the number seq is to be replaced
// as soon as no other contender is in it.
func IsHighNumber(s *core.Session, seq int64) bool { return NumbersLeft(s, seq) <= layout.LeftSoft }

// RemoveWithDir deletes a node of this client that is no hold, and dir with it if dir
// is otherwise empty.
func RemoveWithDir(ctx context.Context, s *core.Session, path, dir string) error {
	if _, err := s.Backend().Commit(ctx, backend.Delete(path, backend.AnyVersion), backend.Delete(dir, backend.AnyVersion)); err == nil {
		return nil
	}
	return s.Remove(ctx, path) // dir not empty, denied, or outcome unknown: the own node must go
}
