package etcd_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// ranges returns the ranges of keys that a server visits for a request.
func ranges(method string, body []byte) (all []string) {
	add := func(from, to []byte) {
		if len(to) > 0 {
			all = append(all, string(from))
		}
	}
	var walk func(r *pb.TxnRequest)
	walk = func(r *pb.TxnRequest) {
		for _, c := range r.Compare {
			add(c.Key, c.RangeEnd)
		}
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if q := op.GetRequestRange(); q != nil {
				add(q.Key, q.RangeEnd)
			}
			if q := op.GetRequestDeleteRange(); q != nil {
				add(q.Key, q.RangeEnd)
			}
			if q := op.GetRequestTxn(); q != nil {
				walk(q)
			}
		}
	}
	switch method {
	case "/etcdserverpb.KV/Range":
		var r pb.RangeRequest
		if r.Unmarshal(body) == nil {
			add(r.Key, r.RangeEnd)
		}
	case "/etcdserverpb.KV/Txn":
		var r pb.TxnRequest
		if r.Unmarshal(body) == nil {
			walk(&r)
		}
	}
	return all
}

// A server visits every key of a range, also if it counts them only. So no request of the first use of a lock has
// the range of its siblings. What a creation costs beside many siblings is compared with one beside none.
func TestEtcd_ACreationCostsTheSameBesideManySiblings(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: time.Minute})
	l := s.link("a")
	var mu sync.Mutex
	var asked []string
	l.always(func(method string, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, ranges(method, body)...)
		return false
	}, func() {})
	a := open(t, l)
	const siblings = 20_000
	for _, dir := range []string{"/many", "/few"} {
		commit(t, a, backend.Create(dir, nil, backend.Persistent))
	}
	for n := 0; n < siblings; {
		var ops []backend.Op
		for range a.Limits().Ops {
			n++
			ops = append(ops, backend.Create(fmt.Sprint("/many/customer-", n), nil, backend.Persistent))
		}
		commit(t, a, ops...)
	}
	c, err := coord.Open(t.Context(), l, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mu.Lock()
	asked = nil
	mu.Unlock()
	const rounds = 50
	took := make(map[string][]time.Duration)
	for i := range rounds {
		for _, dir := range []string{"/many", "/few"} {
			begin := time.Now()
			h, err := coord.NewMutex(c, fmt.Sprintf("%s/new-%d", dir, i), nil).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			took[dir] = append(took[dir], time.Since(begin))
			if err := h.Release(); err != nil {
				t.Fatal(err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, from := range asked {
		if strings.HasSuffix(from, "/many//") || strings.HasSuffix(from, "/many/") {
			t.Fatalf("a request visits the %d siblings of a new lock: range from %q", siblings, from)
		}
	}
	median := func(dir string) time.Duration { slices.Sort(took[dir]); return took[dir][rounds/2] }
	t.Logf("figure: the first lock at a path on etcd: %v beside %d siblings, %v beside none", median("/many"), siblings, median("/few"))
}
