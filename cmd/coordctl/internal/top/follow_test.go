package top

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/internal/coordtest"
)

// TestFollowEndsWithoutPermission: a path that may not be read at the start has no view to wait for.
func TestFollowEndsWithoutPermission(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		c := w.Open("viewer", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			switch c.Op {
			case "get", "exists", "children", "read":
				return backend.ErrDenied
			}
			return nil
		}})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := Follow(ctx, c, "/", nil, func(*live.Model, *live.Snapshot) (bool, error) {
			return false, errors.New("there is a view")
		})
		if !errors.Is(err, coord.ErrDenied) {
			w.T.Errorf("Follow: %v, want ErrDenied", err)
		}
	})
}
