package line

import (
	"context"

	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
)

// Names for files that are being moved.

type (
	Mutex  = Lock
	Config struct{ Whole core.RecipeDir }
)

func NumbersLeft(s *core.Session, seq int64) int64 { return contender.NumbersLeft(s, seq) }
func IsHighNumber(s *core.Session, seq int64) bool { return contender.IsHighNumber(s, seq) }
func RemoveWithDir(ctx context.Context, s *core.Session, path, dir string) error {
	return contender.RemoveWithDir(ctx, s, path, dir)
}

func NewMutex(c *core.Client, path string, cfg Config) *Lock { return NewPart(c, path, cfg.Whole) }
