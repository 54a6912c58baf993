package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestBatches_MembersAreReadInOneRequest(t *testing.T) {
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
		w.costs(&r, "five members", 5)
	})
}

func TestBatches_ContendersAreReadInOneRequest(t *testing.T) {
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
		w.costs(&r, "four contenders and an announcement", 5)
	})
}

func TestBatches_TheItemsOfAClaimAreReadInOneRequest(t *testing.T) {
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
				w.costs(&r, "six items", 6)
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

// isBatch matches a ReadMany.
func isBatch(c backendtest.Call) bool { return c.Op == "read" }

// denied is the result of a read that the service refuses.
func denied(r backend.Read) backend.ReadResult {
	return backend.ReadResult{Err: &backend.Error{Op: "get", Path: r.Path, Err: backend.ErrDenied}}
}

// missing is the result of a read of a node that is gone.
func missing(r backend.Read) backend.ReadResult {
	return backend.ReadResult{Err: &backend.Error{Op: "get", Path: r.Path, Err: backend.ErrNotFound}}
}

func ids(list []coord.Member[string]) (ids []string) {
	for _, m := range list {
		ids = append(ids, m.ID)
	}
	return ids
}

// A member leaves, and another one joins, between the list and the batch.
func TestBatches_AMemberThatVanishesBeforeItsBatchIsReadIsFollowed(t *testing.T) {
	onMemory(t, func(w *world) {
		var r reads
		var x coordtest.Nth
		count := r.hooks().Before
		g := w.group("reader", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			_ = count(ctx, c)
			return x.Before(ctx, c)
		}})
		o := w.group("members", nil)
		var all []*coord.Membership[string]
		for i := range 5 {
			all = append(all, mustJoin(w.T, o, fmt.Sprint(i), ""))
		}
		x.Arm(1, isBatch, func(context.Context, backendtest.Call, error) error {
			mustLeave(w.T, all[3])
			mustJoin(w.T, o, "9", "")
			return nil
		})
		r.since()
		list, err := g.Members(context.Background())
		if got := ids(list); err != nil || !slices.Equal(got, []string{"0", "1", "2", "4", "9"}) {
			w.T.Errorf("members %q, %v", got, err)
		}
		if alone, batches := r.since(); alone != 1 || batches != 1 {
			w.T.Errorf("%d reads and %d batches, want one batch and a read of the new member", alone, batches)
		}
	})
}

// No member can be read: each is listed, with the error, and they are looked for together.
func TestBatches_MembersThatMayNotBeReadAreListed(t *testing.T) {
	onMemory(t, func(w *world) {
		const n = 5
		var mu sync.Mutex
		flying, most := 0, 0
		count := func(c backendtest.Call, d int) {
			mu.Lock()
			defer mu.Unlock()
			if c.Op == "exists" {
				flying += d
				most = max(most, flying)
			}
		}
		g := w.group("reader", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error { count(c, 1); return nil },
			After:  func(_ context.Context, c backendtest.Call, err error) error { count(c, -1); return err },
			Results: func(c backendtest.Call, results []backend.ReadResult) {
				for i, r := range c.Reads {
					results[i] = denied(r)
				}
			},
		})
		o := w.group("members", nil)
		for i := range n {
			mustJoin(w.T, o, fmt.Sprint(i), "hidden")
		}
		w.Service.(coordtest.MemoryService).Store.Link("reader").SetLatency(10 * time.Millisecond)
		list, err := g.Members(context.Background())
		if err != nil || len(list) != n {
			w.T.Fatalf("members %+v, %v", list, err)
		}
		for i, m := range list {
			if m.ID != fmt.Sprint(i) || !errors.Is(m.Err, coord.ErrDenied) || m.Value != "" || m.Token == 0 || m.Session == 0 {
				w.T.Errorf("member %d: %+v", i, m)
			}
		}
		if most != n {
			w.T.Errorf("%d nodes looked for at once, want %d", most, n)
		}
	})
}

// A list of more nodes than a backend reads in one request.
func TestBatches_MoreMembersThanARequestTakes(t *testing.T) {
	onMemories(t, func(w *world) {
		const n = 300
		o := w.group("members", nil)
		var want []string
		for i := range n {
			id := fmt.Sprintf("%03d", i)
			want = append(want, id+"=value of "+id)
			mustJoin(w.T, o, id, "value of "+id)
		}
		list, err := w.group("reader", nil).Members(context.Background())
		if got := brief(list); err != nil || got != strings.Join(want, " ") {
			w.T.Errorf("%d members %s, %v", len(list), got, err)
		}
	})
}

func TestBatches_ContendersWhoseNodesVanishOrMayNotBeRead(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		var change func(reads []backend.Read, results []backend.ReadResult)
		e := coord.NewElection(w.Open("reader", &backendtest.Hooks{Results: func(c backendtest.Call, results []backend.ReadResult) {
			change(c.Reads, results)
		}}), "/e", nil)
		c := w.Open("candidates", nil)
		term := mustLead(t, coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "0"}))
		if err := term.Announce(t.Context(), []byte("here")); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		defer all.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range 2 {
			all.Go(func() {
				_, _ = coord.NewElection(c, "/e", &coord.ElectionOptions{ID: fmt.Sprint(i + 1)}).Campaign(ctx)
			})
			w.Settle()
		}
		// The reads are of the leader, its announcement, and two candidates.
		type answers map[int]func(backend.Read) backend.ReadResult
		for _, x := range []struct {
			what    string
			answers answers
			want    string
			err     error
		}{
			{"all are there", answers{}, "0 ready, 1, 2", nil},
			{"the leader is gone, its announcement not yet", answers{0: missing}, "1, 2", nil},
			{"the leader is gone, and its announcement may not be read", answers{0: missing, 1: denied}, "1, 2", nil},
			{"the announcement is gone", answers{1: missing}, "0, 1, 2", nil},
			{"both are gone", answers{0: missing, 1: missing}, "1, 2", nil},
			{"a candidate is gone", answers{2: missing}, "0 ready, 2", nil},
			{"the announcement may not be read", answers{1: denied}, "", coord.ErrDenied},
			{"a candidate may not be read", answers{3: denied}, "", coord.ErrDenied},
		} {
			change = func(reads []backend.Read, results []backend.ReadResult) {
				if len(reads) != 4 {
					t.Errorf("%s: reads %+v", x.what, reads)
					return
				}
				for i, answer := range x.answers {
					results[i] = answer(reads[i])
				}
			}
			list, err := e.Contenders(t.Context())
			var got []string
			for _, c := range list {
				if c.Ready {
					c.ID += " ready"
				}
				got = append(got, c.ID)
			}
			if s := strings.Join(got, ", "); s != x.want || !errors.Is(err, x.err) {
				t.Errorf("%s: %s, %v, want %s, %v", x.what, s, err, x.want, x.err)
			}
		}
	})
}

// takesAll takes n items, and checks that they are the numbers from 0, without those in less.
func takesAll(t *testing.T, q *coord.Queue[int], n int, less ...int) {
	t.Helper()
	var want, got []int
	for i := range n {
		if !slices.Contains(less, i) {
			want = append(want, i)
		}
	}
	for it, err := range q.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, it.Value)
		mustAck(t, it)
		if len(got) == len(want) {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("took %v, want %v", got, want)
	}
}

func TestBatches_AnItemThatVanishesBeforeItsBatchIsReadIsLeftOut(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("consumer", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{Prefetch: 6})
		if _, err := q.PutAll(w.T.Context(), 0, 1, 2, 3, 4, 5); err != nil {
			w.T.Fatal(err)
		}
		x.Arm(1, isBatch, func(_ context.Context, c backendtest.Call, _ error) error {
			w.outsider(backend.Delete(c.Reads[2].Path, backend.AnyVersion))
			return nil
		})
		takesAll(w.T, q, 6, 2)
		w.drained(&q.Consumer)
	})
}

// One item of a claim cannot be read: all are given back, and none of them has failed.
func TestBatches_AnItemThatMayNotBeReadGivesItsClaimBack(t *testing.T) {
	onMemory(t, func(w *world) {
		var granted atomic.Bool
		var path atomic.Value
		q := w.hookedQueue("consumer", &backendtest.Hooks{
			Results: func(c backendtest.Call, results []backend.ReadResult) {
				if !granted.Load() {
					results[2] = denied(c.Reads[2])
					path.Store(c.Reads[2].Path)
				}
			},
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if !granted.Load() && c.Op == "get" && c.Path == path.Load() {
					return denied(backend.Read{Path: c.Path}).Err
				}
				return err
			},
		}, &coord.QueueOptions[int]{Prefetch: 6})
		if _, err := q.PutAll(w.T.Context(), 0, 1, 2, 3, 4, 5); err != nil {
			w.T.Fatal(err)
		}
		turns := 0
		for it, err := range q.All(w.T.Context()) {
			turns++
			coordtest.WantErr(w.T, err, coord.ErrDenied)
			if it != nil {
				w.T.Errorf("took %+v", it)
			}
		}
		if turns != 1 {
			w.T.Errorf("%d turns of a loop that fails", turns)
		}
		granted.Store(true)
		it := mustTake(w.T, q, 0)
		if it.Attempt != 1 {
			w.T.Errorf("attempt %d of an item that no caller received", it.Attempt)
		}
		if err := it.Release(); err != nil {
			w.T.Error(err)
		}
		takesAll(w.T, q, 6)
		w.drained(&q.Consumer)
	})
}

// The session of a claim ends before its items are read: they are taken again on the next one.
func TestBatches_ASessionThatEndsBeforeItsBatchIsReadHandsOutNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		var x coordtest.Nth
		q := w.hookedQueue("consumer", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{Prefetch: 6})
		if _, err := q.PutAll(w.T.Context(), 0, 1, 2, 3, 4, 5); err != nil {
			w.T.Fatal(err)
		}
		link := "consumer"
		lose := func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link(link).Expire(c.Session.ID())
			return nil
		}
		x.Arm(1, isBatch, lose)
		takesAll(w.T, q, 6)
		if !x.Idle() || slices.Contains(w.Children("/q"), "dead") {
			w.T.Errorf("a session ended: %t; left: %q", x.Idle(), w.Children("/q"))
		}
		w.drained(&q.Consumer)

		link = "reader"
		g := w.group(link, &backendtest.Hooks{Before: x.Before})
		o := w.group("members", nil)
		for i := range 3 {
			mustJoin(w.T, o, fmt.Sprint(i), "")
		}
		x.Arm(1, isBatch, lose)
		list, err := g.Members(context.Background())
		if got := ids(list); err != nil || !slices.Equal(got, []string{"0", "1", "2"}) || !x.Idle() {
			w.T.Errorf("members %q, %v", got, err)
		}
	})
}

// A backend has batches, and the service behind it refuses them.
func TestBatches_AServiceThatRefusesItsBatchesIsReadNodeByNode(t *testing.T) {
	onMemory(t, func(w *world) {
		hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if isBatch(c) {
				return backend.ErrUnsupported
			}
			return nil
		}}
		o := w.group("members", nil)
		for i := range 3 {
			mustJoin(w.T, o, fmt.Sprint(i), "")
		}
		list, err := w.group("reader", hooks).Members(context.Background())
		if got := brief(list); err != nil || got != "0= 1= 2=" {
			w.T.Errorf("members %s, %v", got, err)
		}
		q := w.hookedQueue("consumer", hooks, &coord.QueueOptions[int]{Prefetch: 6})
		if _, err := q.PutAll(w.T.Context(), 0, 1, 2, 3, 4, 5); err != nil {
			w.T.Fatal(err)
		}
		takesAll(w.T, q, 6)
	})
}
