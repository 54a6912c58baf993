package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
)

// A read of another goroutine shows another node of the parent's path while the plan is made. The plan
// creates nothing below an ephemeral node.
func TestAPlanSeesOneNodeAtAPath(t *testing.T) {
	s := &session{cfg: &config{prefix: "p"}, id: 7, known: newCache(), keys: newKeyring(7)}
	persistent := &record{key: "p//x", created: 5, mod: 5, puts: 1}
	ephemeral := &record{key: "p//x", created: 9, mod: 9, puts: 1, lease: 3, flags: flagEphemeral}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				s.known.forget("/x")
				s.known.see("/x", persistent)
				s.known.see("/x", ephemeral)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for _, ops := range [][]backend.Op{
		{backend.Create("/x/c", nil, backend.Persistent), backend.Carry("/x", nil)},
		{backend.Carry("/x", nil), backend.Create("/x/c", nil, backend.Persistent)},
		{backend.Absent("/x/c"), backend.Carry("/x", nil)},
	} {
		for range 50_000 {
			p := s.guess(ops)
			if p == nil {
				continue
			}
			flags, carried := false, false
			for _, c := range p.compares {
				if string(c.Key) == ephemeral.key {
					flags = flags || c.Target == pb.Compare_VALUE
					carried = carried || c.GetModRevision() == ephemeral.mod
				}
			}
			if carried && !flags {
				t.Fatalf("the plan for %v succeeds although the parent is an ephemeral node: %v", ops, p.compares)
			}
		}
	}
}
