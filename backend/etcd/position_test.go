package etcd_test

import (
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A read is as of the latest commit that it shows, exactly: Arm from its position misses nothing, and
// Arm from the position before it misses that commit.
func TestPosition_OfAReadIsThatOfTheLatestCommit(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a := open(t, s.link("a"))
	commit(t, a, backend.Create("/d", nil, backend.Persistent))
	made := commit(t, a, backend.Create("/d/n-", nil, backend.PersistentSequential))[0].Czxid
	for name, read := range map[string]func() (backend.Stat, error){
		"Children": func() (backend.Stat, error) { _, stat, err := a.Children(t.Context(), "/d", nil); return stat, err },
		"Children with a watch": func() (backend.Stat, error) {
			w := backend.NewWatch()
			defer w.Stop()
			_, stat, err := a.Children(t.Context(), "/d", w)
			return stat, err
		},
		"Get":    func() (backend.Stat, error) { _, stat, err := a.Get(t.Context(), "/d", nil); return stat, err },
		"Exists": func() (backend.Stat, error) { return a.Exists(t.Context(), "/d", nil) },
	} {
		stat, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if stat.AsOf < made {
			t.Errorf("%s: as of %d, and the latest commit was %d", name, stat.AsOf, made)
		}
		for since, want := range map[int64]backend.Kind{stat.AsOf: 0, made - 1: backend.LookAgain} {
			w := backend.NewWatch()
			if err := a.Arm(t.Context(), since, backend.Target{Path: "/d", Children: true, Watch: w}); err != nil {
				t.Fatal(err)
			}
			if w.Kind() != want {
				t.Errorf("%s: a watch from %d, with the latest commit at %d, has the kind %q, want %q", name, since, made, w.Kind(), want)
			}
			w.Stop()
		}
	}
}
