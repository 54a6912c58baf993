package etcd

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// The watchers of one revision can answer in any order. A node is created before what is below it, and
// deleted behind that.
func TestOrder_OfTheEventsOfOneRevision(t *testing.T) {
	of := func(what watchRange, kind mvccpb.Event_EventType) *batch {
		return &batch{rev: 7, from: &watcher{key: watchKey{what: what}}, events: []*mvccpb.Event{{Type: kind}}}
	}
	kids, made, below, gone := of(kidsRange, mvccpb.PUT), of(nodeRange, mvccpb.PUT), of(belowRange, mvccpb.PUT), of(nodeRange, mvccpb.DELETE)
	want := []*batch{kids, made, below, gone}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := slices.Clone(want)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if got := inOrder(all); !slices.Equal(got, want) {
			t.Fatalf("the order is %v, want %v", got, want)
		}
	}
}
