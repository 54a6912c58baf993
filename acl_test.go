package coord_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// withPermissions makes a directory on the real server that anybody may use with
// perms only.
func withPermissions(t *testing.T, path string, perms int32) {
	t.Helper()
	conn, _, err := zk.Connect(server.Get(t).Addrs(), 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Create(path, []byte{}, 0, zk.WorldACL(perms)); err != nil {
		t.Fatal(err)
	}
}

func TestPermissionsOnARealServer(t *testing.T) {
	t.Parallel()
	newClients := func(t *testing.T) (*zkservice.Service, *coord.Client, *coord.Client) {
		s := zkservice.New(t, server.Get(t), zookeeper.Options{SessionTimeout: worldTimeout})
		o := &coord.Options{Namespace: s.Root()}
		return s, open(t, s.Link("a"), o), open(t, s.Link("b"), o)
	}
	t.Run("a directory whose data may not be written works the long way", func(t *testing.T) {
		s, a, b := newClients(t)
		withPermissions(t, s.Root()+"/l", zk.PermRead|zk.PermCreate|zk.PermDelete)
		var last int64
		for range 3 {
			for _, c := range []*coord.Client{a, b} {
				h := mustLock(t, coord.NewMutex(c, "/l", nil))
				if h.Token() <= last {
					t.Errorf("token %d after %d", h.Token(), last)
				}
				last = h.Token()
				if _, err := coord.NewMutex(a, "/l", nil).TryLock(context.Background()); !errors.Is(err, coord.ErrLocked) {
					t.Errorf("TryLock: %v", err)
				}
				mustRelease(t, h)
			}
		}
	})
	t.Run("a contender that may not be read is told of, and nothing stays behind it", func(t *testing.T) {
		s, a, b := newClients(t)
		h := mustLock(t, coord.NewMutex(a, "/l", nil))
		if _, err := raw(t, s).SetACL(h.Path(), zk.WorldACL(zk.PermAdmin|zk.PermWrite), -1); err != nil {
			t.Fatal(err)
		}
		_, err := coord.NewMutex(b, "/l", nil).Lock(context.Background())
		wantErr(t, err, coord.ErrDenied)
		w := &world{Service: s, t: t}
		w.eventually("only the holder is left", func() bool { return len(w.children("/l")) == 1 })
		mustRelease(t, h)
	})
	t.Run("a directory in which nothing may be made is told of", func(t *testing.T) {
		s, a, _ := newClients(t)
		withPermissions(t, s.Root()+"/l", zk.PermRead)
		_, err := coord.NewMutex(a, "/l", nil).Lock(context.Background())
		wantErr(t, err, coord.ErrDenied)
	})
	t.Run("a directory that may not be read is told of, and nothing stays in it", func(t *testing.T) {
		s, a, b := newClients(t)
		dir := s.Root() + "/l"
		withPermissions(t, dir, zk.PermCreate|zk.PermDelete|zk.PermWrite)
		_, err := coord.NewMutex(a, "/l", nil).Lock(context.Background())
		wantErr(t, err, coord.ErrDenied)
		_, err = coord.NewMutex(b, "/l", nil).TryLock(context.Background())
		wantErr(t, err, coord.ErrDenied)
		w := &world{Service: s, t: t}
		observer := w.session("observer")
		w.eventually("nothing is left in it", func() bool {
			stat, err := observer.Exists(context.Background(), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			return stat.NumChildren == 0 && stat.Cversion > 0
		})
	})
}
