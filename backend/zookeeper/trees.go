package zookeeper

import (
	"context"

	"github.com/go-coord/coord/backend"
)

// WatchTree is not supported.
func (s *session) WatchTree(_ context.Context, path string, w *backend.TreeWatch) error {
	w.Stop()
	return &backend.Error{Op: "watch", Path: path, Err: backend.ErrUnsupported}
}
