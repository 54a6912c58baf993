//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// This measures the cost of a large copy. A server from 3.6 on has one watch for it, and sends
// many nodes with each reply.
func TestACacheOfThousandsOfNodes(t *testing.T) {
	const leaves = 100
	dirs := 19
	if long() {
		dirs = 99
	}
	s := newService(t)
	plain, err := s.ZooKeeper("writer").Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	data := make([]byte, 64)
	root := s.Root() + "/big"
	ops := []backend.Op{backend.Create(root, nil, backend.Persistent)}
	for d := range dirs {
		dir := fmt.Sprintf("%s/service-%02d", root, d)
		ops = append(ops, backend.Create(dir, nil, backend.Persistent))
		for l := range leaves {
			ops = append(ops, backend.Create(fmt.Sprintf("%s/instance-%04d", dir, l), data, backend.Persistent))
		}
		if _, err := plain.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		ops = nil
	}
	nodes := 1 + dirs*(1+leaves)

	x := newContender(t, s, "cache")
	x.verifyContact()
	before := measure(t)
	k := coord.NewCache(x.c, "/big", nil)
	run := func() (took time.Duration, requests int, stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		from := x.link.Requests()
		began := time.Now()
		go func() { done <- k.Run(ctx) }()
		receive(t, x.synced, "everything is read")
		took = time.Since(began)
		return took, x.link.Requests() - from, func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Run ended with %v", err)
			}
		}
	}
	took, requests, stop := run()
	if n := k.Len(); n != nodes {
		t.Errorf("%d nodes, want %d", n, nodes)
	}
	with := measure(t)
	watches := with.watches - before.watches
	if watches < 1 || watches > 2 { // servers before 3.9 count it twice
		t.Errorf("%d watches on the server, want one for the tree", watches)
	}
	if requests < nodes/128 || requests > 300 {
		t.Errorf("%d requests for the first copy", requests)
	}
	stop()
	again, _, stop := run()
	n, found := k.Get(fmt.Sprintf("/big/service-%02d/instance-0099", dirs-1))
	if !found || len(n.Data) != len(data) || n.Stat.Czxid == 0 {
		t.Errorf("%+v, %t", n, found)
	}
	stop()
	perNode := (with.heap - before.heap) / int64(nodes)
	x.c.Close()
	alone := measure(t).heap
	k = nil
	perCopy := (alone - measure(t).heap) / int64(nodes)
	t.Logf("figure: a cache of %d nodes with %d bytes each: first copy in %v and %d requests, read again in %v; heap per node %d bytes, of which the copy is %d, with data and path; %d watches on the server; goroutines %d, without it %d",
		nodes, len(data), took.Round(time.Millisecond), requests, again.Round(time.Millisecond), perNode, perCopy, watches, with.goroutines, before.goroutines)
	if perCopy > 600 || perNode > 700 {
		t.Errorf("heap per node of %d bytes, the copy %d", perNode, perCopy)
	}
	if with.goroutines > before.goroutines+5 {
		t.Errorf("%d goroutines, %d without the cache", with.goroutines, before.goroutines)
	}
}
