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

// ReadMany is not supported.
func (s *session) ReadMany(_ context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	path := ""
	if len(reads) > 0 {
		path = reads[0].Path
	}
	return nil, &backend.Error{Op: "read", Path: path, Err: backend.ErrUnsupported}
}
