package etcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/zkproxy"
)

// restorable is a server whose data can be put back.
type restorable struct {
	t      *testing.T
	dir    string
	addr   string
	token  string
	server *server
}

func newRestorable(t *testing.T) *restorable {
	t.Helper()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	addrs, err := free(1)
	if err != nil {
		t.Fatal(err)
	}
	r := &restorable{t: t, dir: filepath.Join(t.TempDir(), "data"), addr: addrs[0], token: "first"}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *restorable) start() {
	r.t.Helper()
	var err error
	r.server, err = startEmbedded(r.dir, r.addr, func(cfg *embed.Config) { cfg.InitialClusterToken = r.token })
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *restorable) stop() {
	if r.server != nil {
		r.server.stop()
		r.server = nil
	}
}

// backUp copies the data. It returns a function that puts the copy in the place of the data.
func (r *restorable) backUp() (restore func()) {
	r.t.Helper()
	r.stop()
	backup := filepath.Join(r.t.TempDir(), "backup")
	if err := os.CopyFS(backup, os.DirFS(r.dir)); err != nil {
		r.t.Fatal(err)
	}
	r.start()
	return func() {
		r.t.Helper()
		r.stop()
		os.RemoveAll(r.dir)
		if err := os.CopyFS(r.dir, os.DirFS(backup)); err != nil {
			r.t.Fatal(err)
		}
		r.start()
	}
}

// A service is restored from a backup while a session lives. The session, whatever it has done since the
// backup, is lost.
func TestEtcd_RestoredServiceEndsTheSession(t *testing.T) {
	t.Parallel()
	one := func(t *testing.T, s, _ backend.Session) {
		commit(t, s, backend.SetData("/n", []byte("x"), backend.AnyVersion))
	}
	for name, test := range map[string]struct {
		later func(t *testing.T, s, other backend.Session) // what the session does after the backup
		pass  bool                                         // the service passes the revisions of the session before it is back
	}{
		"the revision goes back": {one, false},
		"a put is missing":       {one, true},
		"what was deleted exists": {func(t *testing.T, s, _ backend.Session) {
			commit(t, s, backend.Delete("/e", backend.AnyVersion))
		}, true},
		"a lock was released": {func(t *testing.T, s, _ backend.Session) {
			names, _, err := s.Children(t.Context(), "/lock", nil)
			if err != nil || len(names) != 1 {
				t.Fatal(names, err)
			}
			commit(t, s, backend.Delete("/lock/"+names[0], backend.AnyVersion))
		}, true},
		"what it has read is another": {func(t *testing.T, s, _ backend.Session) {
			if _, _, err := s.Get(t.Context(), "/other", nil); err != nil {
				t.Fatal(err)
			}
		}, true},
		"an event is missing": {func(t *testing.T, s, other backend.Session) {
			w := backend.NewWatch()
			if _, err := s.Exists(t.Context(), "/event", w); !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			commit(t, other, backend.Create("/event", nil, backend.Persistent))
			await(t, w.Fired(), "the event")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRestorable(t)
			proxy, err := zkproxy.NewRaw(r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer proxy.Close()
			o := &etcd.Options{SessionTimeout: 30 * time.Second}
			s, other := open(t, etcd.New([]string{proxy.Addr()}, o)), open(t, etcd.New([]string{r.addr}, o))
			commit(t, s, backend.Create("/n", nil, backend.Persistent), backend.Create("/e", nil, backend.Ephemeral),
				backend.Create("/lock", nil, backend.Persistent), backend.Create("/lock/n-", nil, backend.EphemeralSequential))
			restore := r.backUp()
			if err := other.Sync(t.Context(), "/"); err != nil {
				t.Fatal(err)
			}
			if err := s.Sync(t.Context(), "/"); err != nil {
				t.Fatal(err)
			}
			commit(t, other, backend.Create("/other", nil, backend.Persistent))
			test.later(t, s, other)
			proxy.Refuse(true)
			proxy.Cut()
			restore()
			if test.pass {
				fresh := open(t, etcd.New([]string{r.addr}, o))
				for i := range 30 {
					commit(t, fresh, backend.Create(fmt.Sprint("/fresh", i), nil, backend.Persistent))
				}
			}
			proxy.Refuse(false)
			await(t, s.Done(), "the loss")
			if err := s.Err(); !errors.Is(err, backend.ErrSessionLost) || !strings.Contains(err.Error(), "the service has returned to an earlier state") {
				t.Errorf("the session ended with: %v", err)
			}
		})
	}
}

// The service is replaced by an empty one of another cluster.
func TestEtcd_AnotherClusterEndsTheSession(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	s := open(t, etcd.New([]string{r.addr}, &etcd.Options{SessionTimeout: 30 * time.Second}))
	r.stop()
	os.RemoveAll(r.dir)
	r.token = "second"
	r.start()
	await(t, s.Done(), "the loss")
	if err := s.Err(); !errors.Is(err, backend.ErrSessionLost) || !strings.Contains(err.Error(), "belongs to cluster") {
		t.Errorf("the session ended with: %v", err)
	}
}

// Two endpoints of one list belong to two clusters, with different ids or, with default settings, the same.
func TestEtcd_EndpointsOfTwoClustersAreRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"first", "second"} {
		t.Run(token, func(t *testing.T) {
			t.Parallel()
			a, b := newRestorable(t), newRestorable(t)
			b.stop()
			os.RemoveAll(b.dir)
			b.token = token
			b.start()
			_, err := etcd.New([]string{a.addr, b.addr}, nil).Open(t.Context())
			if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "different clusters") {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

// Nothing shows another history when the servers have compacted what the session has seen: the session
// continues.
func TestEtcd_CompactionIsNoOtherHistory(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	proxy, err := zkproxy.NewRaw(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	o := &etcd.Options{SessionTimeout: 30 * time.Second}
	s, other := open(t, etcd.New([]string{proxy.Addr()}, o)), newService(t, r.addr, *o)
	commit(t, s, backend.Create("/n", nil, backend.Persistent), backend.Create("/e", nil, backend.Ephemeral))
	commit(t, s, backend.Delete("/e", backend.AnyVersion))
	for range 3 {
		proxy.Refuse(true)
		proxy.Cut()
		reply, err := pb.NewKVClient(other.admin).Put(t.Context(), &pb.PutRequest{Key: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pb.NewKVClient(other.admin).Compact(t.Context(), &pb.CompactionRequest{Revision: reply.Header.Revision}); err != nil {
			t.Fatal(err)
		}
		proxy.Refuse(false)
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		commit(t, s, backend.SetData("/n", nil, backend.AnyVersion))
	}
}
