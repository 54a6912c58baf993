package etcd_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// Another program writes below the prefix. The other nodes can be listed still, and what cannot be read has an error of the
// contract.
func TestEtcd_ForeignKeysBelowThePrefix(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{})
	a := open(t, s.link("a"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	commit(t, a, backend.Create("/d/n", nil, backend.Persistent))
	kv := pb.NewKVClient(s.admin)
	since := commit(t, a, backend.Create("/d/m", nil, backend.Persistent))[0].Czxid
	for _, key := range []string{"/d//", "/d//x/y", "/d//n\x00zz", "/d//\x0000", "/d//value"} {
		if _, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte(s.opts.Prefix + key), Value: []byte("foreign")}); err != nil {
			t.Fatal(err)
		}
	}
	names, stat, err := a.Children(t.Context(), "/d", nil)
	if slices.Sort(names); err != nil || strings.Join(names, " ") != "m n value" || int(stat.NumChildren) != len(names) {
		t.Errorf("the children are %q, %+v, %v", names, stat, err)
	}
	if _, _, err := a.Get(t.Context(), "/d/value", nil); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a read of a foreign value: %v", err)
	}
	if _, err := a.Commit(t.Context(), backend.SetData("/d/value", nil, 0)); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a write of a foreign value: %v", err)
	}
	w := backend.NewWatch()
	if err := a.Arm(t.Context(), since, backend.Target{Path: "/d", Children: true, Watch: w}); err != nil || w.Kind() != backend.LookAgain {
		t.Errorf("a watch of the children: %v, %v", w.Kind(), err)
	}
	commit(t, a, backend.Create("/d/later", nil, backend.Persistent))
}

// A session that is printed shows its id, and reads nothing that its goroutines change.
func TestEtcd_ASessionPrintsItsIdOnly(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{Username: "", ContainerInterval: -1})
	l := s.link("a")
	a := open(t, l)
	for i := range 20 {
		commit(t, a, backend.Create(fmt.Sprint("/n", i), nil, backend.Persistent))
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			if got, want := fmt.Sprintf(format, a), fmt.Sprintf("etcd session %#x", a.ID()); got != want {
				t.Fatalf("%s prints %.200q, want %q", format, got, want)
			}
			if got := fmt.Sprintf(format, l.Backend); !strings.HasPrefix(got, "etcd backend 127.0.0.1:") || strings.Contains(got, s.opts.Prefix) {
				t.Fatalf("%s prints the backend as %.200q", format, got)
			}
		}
	}
}
