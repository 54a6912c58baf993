package etcd

import (
	"runtime"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// While a plan is made, a read of another goroutine shows another node at the path of a parent, which the
// plan has looked at once and looks at again. The plan creates nothing below an ephemeral node.
func TestAPlanSeesOneNodeAtAPath(t *testing.T) {
	persistent := &record{key: "p//x", created: 5, mod: 5, puts: 1}
	ephemeral := &record{key: "p//x", created: 9, mod: 9, puts: 1, lease: 3, flags: flagEphemeral}
	child, absent, carry := backend.Create("/x/c", nil, backend.Persistent), backend.Absent("/x/c"), backend.Carry("/x", nil)
	// This operation needs a new key, for which the plan waits.
	between := backend.Create("/y/n-", nil, backend.EphemeralSequential)
	for _, tc := range []struct {
		ops         []backend.Op
		first, then *record // at /x
	}{
		{[]backend.Op{child, between, carry}, persistent, ephemeral},
		{[]backend.Op{absent, between, carry}, persistent, ephemeral},
		{[]backend.Op{carry, between, child}, ephemeral, persistent},
	} {
		s := &session{cfg: &config{prefix: "p"}, id: 7, known: newCache(), keys: newKeyring(7), Life: contact.NewLife(contact.Clock(), nil)}
		s.known.see("/x", tc.first)
		s.known.see("/y", &record{key: "p//y", created: 2, mod: 2, puts: 1})
		seen := &s.known.seen
		seen.young, seen.old = nil, seen.young // a look at an entry makes it young
		s.keys.mu.Lock()
		p, made := newPlan(tc.ops), make(chan bool, 1)
		go func() { made <- s.assume(p, 0) }()
		for len(made) == 0 && !isYoung(s.known, "/y") {
			runtime.Gosched()
		}
		s.known.forget("/x")
		s.known.see("/x", tc.then)
		s.keys.mu.Unlock()
		if !<-made {
			continue // the session looks first
		}
		flags, carried := false, false
		for _, c := range p.compares {
			if string(c.Key) == ephemeral.key {
				flags = flags || c.Target == pb.Compare_VALUE
				carried = carried || c.GetModRevision() == ephemeral.mod
			}
		}
		if carried && !flags {
			t.Errorf("the plan for %v succeeds although the parent is an ephemeral node: %v", tc.ops, p.compares)
		}
	}
}

// isYoung reports whether a record was looked at since it became old.
func isYoung(c *cache, path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.seen.young[path]
	return ok
}
