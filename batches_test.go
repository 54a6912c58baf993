package coord_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// reads counts the reads of nodes' data, alone and in batches.
type reads struct {
	mu             sync.Mutex
	alone, batches int
}

func (r *reads) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch c.Op {
		case "get":
			r.alone++
		case "read":
			r.batches++
		}
		return nil
	}}
}

// since returns the counts since the latest call.
func (r *reads) since() (alone, batches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	alone, batches = r.alone, r.batches
	r.alone, r.batches = 0, 0
	return alone, batches
}

// costs checks that n nodes were read in one batch, or one by one where the service has no
// batches. extra reads are made alone in both cases.
func (w *world) costs(r *reads, what string, n, extra int) {
	w.T.Helper()
	wantAlone, wantBatches := extra, 1
	if w.Without.Has(backend.Batches) {
		wantAlone, wantBatches = extra+n, 0
	}
	if alone, batches := r.since(); alone != wantAlone || batches != wantBatches {
		w.T.Errorf("%s: %d reads and %d batches, want %d and %d", what, alone, batches, wantAlone, wantBatches)
	}
}

func TestMembersAreReadInOneRequest(t *testing.T) {
	onMemories(t, func(w *world) {
		var r reads
		g := w.group("reader", r.hooks())
		o := w.group("members", nil)
		for i := range 5 {
			mustJoin(w.T, o, fmt.Sprint(i), fmt.Sprint("value of ", i))
		}
		r.since()
		list, err := g.Members(context.Background())
		if err != nil || len(list) != 5 || list[3].ID != "3" || list[3].Value != "value of 3" || list[3].Err != nil {
			w.T.Errorf("members %+v, %v", list, err)
		}
		w.costs(&r, "five members", 5, 0)
	})
}

func TestContendersAreReadInOneRequest(t *testing.T) {
	onMemories(t, func(w *world) {
		t := w.T
		var r reads
		e := coord.NewElection(w.Open("reader", r.hooks()), "/e", nil)
		c := w.Open("candidates", nil)
		term := mustLead(t, coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "0"}))
		if err := term.Announce(t.Context(), []byte("here")); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		defer all.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range 3 {
			all.Go(func() {
				_, _ = coord.NewElection(c, "/e", &coord.ElectionOptions{ID: fmt.Sprint(i + 1)}).Campaign(ctx)
			})
			w.Settle()
		}
		r.since()
		list, err := e.Contenders(t.Context())
		if err != nil || len(list) != 4 {
			t.Fatalf("contenders %+v, %v", list, err)
		}
		for i, x := range list {
			if x.ID != fmt.Sprint(i) || x.Ready != (i == 0) || (string(x.Announcement) == "here") != (i == 0) || x.Path == "" {
				t.Errorf("contender %d: %+v", i, x)
			}
		}
		w.costs(&r, "four contenders and an announcement", 5, 0)
	})
}

func TestTheItemsOfAClaimAreReadInOneRequest(t *testing.T) {
	onMemories(t, func(w *world) {
		t := w.T
		var r reads
		q := coord.NewQueue(w.Open("consumer", r.hooks()), "/q", &coord.QueueOptions[int]{Prefetch: 6})
		if _, err := q.PutAll(t.Context(), 0, 1, 2, 3, 4, 5); err != nil {
			t.Fatal(err)
		}
		r.since()
		var got []int
		for it, err := range q.All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, it.Value)
			if len(got) == 1 {
				w.costs(&r, "six items", 6, 0)
			}
			if err := it.Ack(); err != nil {
				t.Error(err)
			}
			if len(got) == 6 {
				break
			}
		}
		if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
			t.Errorf("took %v", got)
		}
	})
}
