package backend_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

const (
	created = backend.TreeCreated
	changed = backend.TreeChanged
	deleted = backend.TreeDeleted
)

func change(path string, kind backend.TreeKind, zxid int64) backend.TreeChange {
	return backend.TreeChange{Path: path, Kind: kind, Zxid: zxid}
}

func told(changes ...backend.TreeChange) *backend.TreeWatch {
	w := backend.NewTreeWatch(0)
	for _, c := range changes {
		w.Tell(c)
	}
	return w
}

func TestATreeWatchCoalesces(t *testing.T) {
	for _, test := range []struct {
		name     string
		in, want []backend.TreeChange
	}{
		{"nothing", nil, nil},
		{"changes", []backend.TreeChange{change("/a", changed, 1), change("/b", changed, 2), change("/a", changed, 3)},
			[]backend.TreeChange{change("/a", changed, 3), change("/b", changed, 2)}},
		{"a change of a node just created", []backend.TreeChange{change("/a", created, 1), change("/a/b", created, 2), change("/a", changed, 3)},
			[]backend.TreeChange{change("/a", created, 3), change("/a/b", created, 2)}},
		{"a deletion of a node just created", []backend.TreeChange{change("/a", created, 1), change("/a", deleted, 2)},
			[]backend.TreeChange{change("/a", deleted, 2)}},
		{"a deletion and a creation", []backend.TreeChange{change("/a", changed, 1), change("/a", deleted, 2), change("/a", created, 3), change("/a", changed, 4)},
			[]backend.TreeChange{change("/a", deleted, 2), change("/a", created, 4)}},
		{"two deletions", []backend.TreeChange{change("/a", deleted, 1), change("/a", created, 2), change("/b", changed, 3), change("/a", deleted, 4)},
			[]backend.TreeChange{change("/b", changed, 3), change("/a", deleted, 4)}},
		{"a subtree that is deleted after a change of its top, and comes back",
			[]backend.TreeChange{change("/a", changed, 1), change("/a/b", deleted, 2), change("/a", deleted, 3), change("/a", created, 4), change("/a/b", created, 5)},
			[]backend.TreeChange{change("/a/b", deleted, 2), change("/a", deleted, 3), change("/a", created, 4), change("/a/b", created, 5)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := told(test.in...)
			if got := len(w.Ready()) > 0; got != (len(test.want) > 0) {
				t.Errorf("ready is %v", got)
			}
			if got, over := w.Take(); !slices.Equal(got, test.want) || over {
				t.Errorf("took %v, over %v, want %v", got, over, test.want)
			}
			if got, over := w.Take(); got != nil || over || len(w.Ready()) > 0 {
				t.Errorf("took %v, over %v after everything", got, over)
			}
		})
	}
}

// A random walk of a tree: the changes that are taken lead from one state to the next, in an
// order in which each parent is created before its children.
func TestTheChangesOfATreeWatchAddUp(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := backend.NewTreeWatch(0)
		nodes, copied := make(map[string]int64), make(map[string]int64) // path to czxid
		paths := []string{"/a", "/a/a", "/a/b", "/a/a/a", "/a/a/b"}
		parent := map[string]string{"/a/a": "/a", "/a/b": "/a", "/a/a/a": "/a/a", "/a/a/b": "/a/a"}
		for zxid := int64(1); zxid < 300; zxid++ {
			p := paths[r.IntN(len(paths))]
			_, there := nodes[p]
			busy := slices.ContainsFunc(paths, func(q string) bool { _, ok := nodes[q]; return ok && parent[q] == p })
			_, under := nodes[parent[p]]
			switch {
			case !there && (under || p == "/a"):
				nodes[p] = zxid
				w.Tell(change(p, created, zxid))
			case there && !busy && r.IntN(2) == 0:
				delete(nodes, p)
				w.Tell(change(p, deleted, zxid))
			case there:
				w.Tell(change(p, changed, zxid))
			}
			if r.IntN(40) > 0 && zxid != 299 {
				continue
			}
			all, over := w.Take()
			if over {
				t.Fatal("over")
			}
			for i, c := range all {
				if _, ok := copied[parent[c.Path]]; !ok && c.Path != "/a" && c.Kind == created {
					t.Fatalf("seed %d: %s is created before its parent: %v", seed, c.Path, all)
				}
				switch c.Kind {
				case created:
					copied[c.Path] = nodes[c.Path]
				case deleted:
					maps.DeleteFunc(copied, func(q string, _ int64) bool { return q == c.Path || strings.HasPrefix(q, c.Path+"/") })
				}
				for _, later := range all[i+1:] {
					if later.Path == c.Path && (c.Kind != deleted || later.Kind != created) {
						t.Fatalf("seed %d: %s stands twice: %v", seed, c.Path, all)
					}
				}
			}
			if fmt.Sprint(copied) != fmt.Sprint(nodes) {
				t.Fatalf("seed %d: the changes lead to %v, want %v", seed, copied, nodes)
			}
		}
	}
}

func TestATreeWatchIsBounded(t *testing.T) {
	w := backend.NewTreeWatch(3)
	for i := range int64(10_000) { // changes of few nodes take no more
		kind := []backend.TreeKind{created, deleted}[i%2]
		if !w.Tell(change("/a", kind, i)) || !w.Tell(change("/b", changed, i)) {
			t.Fatal("over")
		}
	}
	if got, over := w.Take(); over || len(got) != 2 {
		t.Fatalf("took %v, over %v", got, over)
	}
	for i := range 3 {
		if !w.Tell(change(fmt.Sprint("/", i), created, 1)) {
			t.Fatal("over at its limit")
		}
	}
	if w.Tell(change("/3", created, 1)) || w.Tell(change("/0", changed, 1)) {
		t.Error("it takes changes beyond its limit")
	}
	for range 2 {
		if got, over := w.Take(); got != nil || !over {
			t.Errorf("took %v, over %v", got, over)
		}
	}
	w = backend.NewTreeWatch(0)
	for i := range 65536 {
		w.Tell(change(fmt.Sprint("/", i), changed, 1))
	}
	if w.Tell(change("/more", changed, 1)) {
		t.Error("the limit zero is not the default")
	}
}

func TestATreeWatchIsArmedOnce(t *testing.T) {
	w, disarmed := backend.NewTreeWatch(0), 0
	disarm := func(*backend.TreeWatch) { disarmed++ }
	if !w.Arm(disarm) || w.Arm(disarm) {
		t.Error("not armed once")
	}
	w.Tell(change("/a", changed, 1))
	w.Stop()
	w.Stop()
	w.Over()
	if got, over := w.Take(); got != nil || over || w.Tell(change("/a", changed, 2)) || disarmed != 1 {
		t.Errorf("after Stop: %v, %v, disarmed %d times", got, over, disarmed)
	}
	w = backend.NewTreeWatch(0)
	w.Arm(disarm)
	w.Over()
	if _, over := w.Take(); !over || w.Arm(disarm) {
		t.Error("armed when it is over")
	}
	w.Stop()
	if disarmed != 1 {
		t.Error("a watch that is over was disarmed")
	}
	var none *backend.TreeWatch
	none.Stop()
	if got, over := none.Take(); got != nil || over || none.Ready() != nil {
		t.Error("a nil watch reports something")
	}
}
