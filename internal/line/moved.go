package line

import (
	"context"

	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
)

// Names for files that are being moved.
func NumbersLeft(s *core.Session, seq int64) int64 { return contender.NumbersLeft(s, seq) }
func IsHighNumber(s *core.Session, seq int64) bool { return contender.IsHighNumber(s, seq) }
func RemoveWithDir(ctx context.Context, s *core.Session, path, dir string) error {
	return contender.RemoveWithDir(ctx, s, path, dir)
}
