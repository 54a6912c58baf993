package etcd_test

import (
	"errors"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// The session knows the key of the node that it has created, so that it can delete the node without
// a look. Another session creates a child meanwhile.
func TestSequential_APersistentNodeWithAChildIsNotDeleted(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	for name, ops := range map[string]func(path string) []backend.Op{
		"alone":        func(path string) []backend.Op { return []backend.Op{backend.Delete(path, backend.AnyVersion)} },
		"of a version": func(path string) []backend.Op { return []backend.Op{backend.Delete(path, 0)} },
		"beside another": func(path string) []backend.Op {
			return []backend.Op{backend.Check("/d", backend.AnyVersion), backend.Delete(path, backend.AnyVersion)}
		},
	} {
		path := commit(t, a, backend.Create("/d/n-", nil, backend.PersistentSequential))[0].Path
		commit(t, b, backend.Create(path+"/child", nil, backend.Persistent))
		if _, err := a.Commit(t.Context(), ops(path)...); !errors.Is(err, backend.ErrNotEmpty) {
			t.Errorf("%s: the deletion of a node with a child: %v", name, err)
		}
		if _, err := b.Exists(t.Context(), path+"/child", nil); err != nil {
			t.Errorf("%s: the child: %v", name, err)
		}
		commit(t, b, backend.Delete(path+"/child", backend.AnyVersion))
		commit(t, a, ops(path)...)
	}
}
