package recipetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// On a service without space, calls that only delete succeed, and the other calls return the reason.
func TestNoSpace_DeletionsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		open := func() *coord.Client {
			c, err := coord.Open(t.Context(), st, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		c, other := open(), open()
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		h, err := coord.NewMutex(c, "/m", nil).Lock(ctx)
		must(err)
		member, err := coord.NewGroup[string](c, "/g", nil).Join(ctx, "x", "v")
		must(err)
		v := coord.NewValue[string](c, "/v", nil)
		version, err := v.Set(ctx, "x")
		must(err)
		_, err = coord.NewValue[string](c, "/w", nil).Set(ctx, "x")
		must(err)
		bar := coord.NewBarrier(c, "/b", nil)
		must(bar.Set(ctx))
		q := coord.NewQueue[int](c, "/q", nil)
		for i := range 8 {
			_, err := q.Put(ctx, i)
			must(err)
		}
		id, err := q.Put(ctx, 8)
		must(err)
		first, err := q.Take(ctx)
		must(err)
		second, err := q.Take(ctx)
		must(err)
		st.SetFull(true)
		for what, f := range map[string]func(ctx context.Context) error{
			"Put":  func(ctx context.Context) error { _, err := q.Put(ctx, 9); return err },
			"Take": func(ctx context.Context) error { _, err := q.Take(ctx); return err },
			"Lock": func(ctx context.Context) error { _, err := coord.NewMutex(other, "/new", nil).Lock(ctx); return err },
			"Set":  func(ctx context.Context) error { _, err := v.Set(ctx, "y"); return err },
			"Txn": func(ctx context.Context) error {
				_, err := coord.NewTxn(c).Create("/n", nil, backend.Persistent).Commit(ctx)
				return err
			},
			"Elect": func(ctx context.Context) error {
				_, err := coord.NewElection(other, "/e", nil).Campaign(ctx)
				return err
			},
			"Counter": func(ctx context.Context) error { _, err := coord.NewCounter(c, "/c").Add(ctx, 1); return err },
			"Semaphore": func(ctx context.Context) error {
				_, err := coord.NewSemaphore(c, "/s", 2, nil).Acquire(ctx, 1)
				return err
			},
		} {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			if err := f(ctx); !errors.Is(err, coord.ErrNoSpace) || errors.Is(err, coord.ErrUncertain) {
				t.Errorf("%s without space: %v", what, err)
			}
			cancel()
		}
		for _, c := range []struct {
			what string
			f    func() error
		}{
			{"Ack", first.Ack},
			{"AckAll", func() error { return q.AckAll(second) }},
			{"Pop", func() error { _, err := q.Pop(ctx); return err }},
			{"Remove", func() error { return q.Remove(ctx, id) }},
			{"Purge", func() error {
				n, err := q.Purge(ctx)
				if err == nil && n == 0 {
					t.Error("Purge has removed nothing")
				}
				return err
			}},
			{"Release", h.Release},
			{"Leave", member.Leave},
			{"Remove of a barrier", func() error { return bar.Remove(ctx) }},
			{"Delete of a value", func() error { return v.Delete(ctx, version) }},
			{"Delete in a Txn", func() error { _, err := coord.NewTxn(c).Delete("/w").Commit(ctx); return err }},
			// A client that has no receipt yet.
			{"Wait at the barrier", func() error { return coord.NewBarrier(other, "/b", nil).Wait(ctx) }},
			{"Delete by another client", func() error { _, err := coord.NewTxn(other).Delete("/q").Commit(ctx); return dirs(err) }},
		} {
			if err := c.f(); err != nil {
				t.Errorf("%s without space: %v", c.what, err)
			}
		}
		st.SetFull(false)
		_, err = q.Put(ctx, 10)
		must(err)
	})
}

// dirs allows a refusal because of children.
func dirs(err error) error {
	if errors.Is(err, coord.ErrNotEmpty) {
		return nil
	}
	return err
}

// A shortage of space ends no loop of a consumer. When there is space again, the items are handled.
func TestNoSpace_WorkAndAllGoOnAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c, err := coord.Open(t.Context(), st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		ended, handled := make(chan error, 3), make(chan int, 100)
		q := []*coord.Queue[int]{coord.NewQueue[int](c, "/work", nil), coord.NewQueue[int](c, "/all", nil), coord.NewQueue[int](c, "/items", nil)}
		go func() {
			ended <- q[0].Work(ctx, 2, func(_ context.Context, it *coord.Item[int]) error { handled <- it.Value; return nil })
		}()
		go func() {
			var last error
			for it, err := range q[1].All(ctx) {
				if last = err; err != nil {
					break
				}
				handled <- it.Value
				it.Ack()
			}
			ended <- last
		}()
		go func() {
			for it := range q[2].Items(ctx) {
				handled <- it.Value
				it.Ack()
			}
			ended <- nil
		}()
		put := func() {
			t.Helper()
			for i, q := range q {
				if _, err := q.Put(ctx, i); err != nil {
					t.Fatal(err)
				}
			}
		}
		put()
		for range q {
			<-handled
		}
		synctest.Wait()
		for range 3 {
			put()
			st.SetFull(true) // between the Put and the claim, or during the wait
			time.Sleep(time.Duration(coordtest.Count(10, 60)) * time.Minute)
			st.SetFull(false)
			begin := time.Now()
			for range q {
				<-handled
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("the items were handled %v after the end of the shortage", took)
			}
		}
		select {
		case err := <-ended:
			t.Errorf("a loop has ended: %v", err)
		default:
		}
		cancel()
		for range q {
			if err := <-ended; err != nil {
				t.Errorf("a loop has ended with %v", err)
			}
		}
	})
}

// Items leave a limited queue without space too, uncounted, and a Put that finds it full afterwards counts anew.
func TestNoSpace_LimitedQueueIsEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c, err := coord.Open(t.Context(), st, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx := t.Context()
		const limit = 12
		q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxLen: limit, FailWhenFull: true})
		var ids []string
		fill := func() {
			t.Helper()
			for i := range limit {
				id, err := q.Put(ctx, i)
				if err != nil {
					t.Fatalf("Put %d: %v", i, err)
				}
				ids = append(ids, id)
			}
		}
		fill()
		var items []*coord.Item[int]
		for range 4 {
			it, err := q.Take(ctx)
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, it)
		}
		st.SetFull(true)
		for _, c := range []struct {
			what string
			f    func() error
		}{
			{"Ack", items[0].Ack},
			{"AckAll", func() error { return q.AckAll(items[1:3]...) }},
			{"Remove", func() error { return q.Remove(ctx, ids[limit-1]) }},
			{"Pop", func() error { _, err := q.Pop(ctx); return err }},
			{"Purge", func() error { _, err := q.Purge(ctx); return err }},
		} {
			if err := c.f(); err != nil {
				t.Errorf("%s without space: %v", c.what, err)
			}
		}
		st.SetFull(false)
		if err := items[3].Ack(); err != nil {
			t.Error(err)
		}
		fill()
		if n, err := q.Len(ctx); n != limit || err != nil {
			t.Errorf("%d items, %v", n, err)
		}
	})
}

// Pop needs no claim, which would be a write, of whatever item is next.
func TestNoSpace_PopOfAnyItem(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, st *memory.Store, q *coord.Queue[int]){
		"nothing was taken before": func(*testing.T, *memory.Store, *coord.Queue[int]) {},
		"a Take was refused": func(t *testing.T, st *memory.Store, q *coord.Queue[int]) {
			if _, err := q.Take(t.Context()); !errors.Is(err, coord.ErrNoSpace) {
				t.Errorf("a Take without space: %v", err)
			}
		},
		"an item was given back": func(t *testing.T, st *memory.Store, q *coord.Queue[int]) {
			st.SetFull(false)
			it, err := q.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			st.SetFull(true)
			if err := it.Release(); err != nil {
				t.Fatal(err)
			}
		},
		"an attempt has failed": func(t *testing.T, st *memory.Store, q *coord.Queue[int]) {
			st.SetFull(false)
			it, err := q.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := it.Nack(0); err != nil {
				t.Fatal(err)
			}
			st.SetFull(true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(nil)
				c, err := coord.Open(t.Context(), st, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				q := coord.NewQueue[int](c, "/q", nil)
				for i := range 3 {
					if _, err := q.Put(t.Context(), i); err != nil {
						t.Fatal(err)
					}
				}
				st.SetFull(true)
				before(t, st, q)
				for want := range 3 {
					if v, err := q.Pop(t.Context()); err != nil || v != want {
						t.Errorf("Pop without space: %d, %v; want %d", v, err, want)
					}
				}
				if _, err := q.Pop(t.Context()); !errors.Is(err, coord.ErrNoSpace) {
					t.Errorf("Pop of an empty queue without space: %v", err)
				}
			})
		})
	}
}

// A shortage of space ends no loop of a candidate. When there is space again, the candidate leads.
func TestNoSpace_CandidatesGoOnAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, book := memory.New(nil), new(logbook)
		c, err := coord.Open(t.Context(), st, &coord.Options{Logger: slog.New(book)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		ended, led := make(chan error, 3), make(chan *coord.Term)
		go func() {
			for term := range coord.NewElection(c, "/leadership", nil).Leadership(ctx) {
				led <- term
			}
			ended <- nil
		}()
		go func() {
			var last error
			for term, err := range coord.NewElection(c, "/terms", nil).Terms(ctx) {
				if last = err; err != nil {
					break
				}
				led <- term
				<-term.Done()
			}
			ended <- last
		}()
		go func() {
			var last error
			for ctx.Err() == nil && last == nil {
				last = coord.NewElection(c, "/run", nil).Run(ctx, func(_ context.Context, term *coord.Term) error {
					led <- term
					<-term.Done()
					return nil
				})
			}
			ended <- last
		}()
		var terms []*coord.Term
		lead := func() {
			t.Helper()
			begin := time.Now()
			terms = nil
			for range 3 {
				terms = append(terms, <-led)
			}
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("all lead after %v", took)
			}
		}
		resign := func() {
			t.Helper()
			for _, term := range terms {
				if err := term.Release(); err != nil {
					t.Error(err)
				}
			}
		}
		for range 3 {
			lead()
			st.SetFull(true)
			resign()
			time.Sleep(time.Hour)
			st.SetFull(false)
		}
		lead()
		warnings := 0
		for _, line := range book.take() {
			if line == "WARN cannot campaign because the service has no space, retrying" {
				warnings++
			}
		}
		if warnings != 9 { // each of three candidates, once in each of three shortages
			t.Errorf("%d warnings", warnings)
		}
		cancel()
		resign()
		for range 3 {
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("a loop has ended with %v", err)
			}
		}
	})
}

// A shortage of space ends no Serve: neither at its begin, nor when the site has to take its lock on a new session.
func TestNoSpace_ServeGoesOnAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		book := new(logbook)
		open := func(name string, logger *slog.Logger) *coord.Client {
			c, err := coord.Open(t.Context(), st.Link(name), &coord.Options{Logger: logger})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		c, proposer := open("site", slog.New(book)), open("proposer", nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		yes := func(context.Context, coord.Branch[string]) error { return nil }
		site := coord.NewParticipant(c, "/tx", "a", coord.Handler[string]{Prepare: yes, Commit: yes, Abort: yes})
		st.SetFull(true)
		go func() { ended <- site.Serve(ctx) }()
		for i := range 3 {
			time.Sleep(time.Hour)
			st.SetFull(false)
			time.Sleep(2 * time.Second) // the site is served again
			d, err := coord.NewCoordinator[string](proposer, "/tx", nil).Propose(ctx, coord.Proposal[string]{ID: fmt.Sprint(i), Sites: []string{"a"}})
			if err != nil || !d.Commit {
				t.Errorf("after shortage %d: %+v, %v", i, d, err)
			}
			synctest.Wait()
			st.SetFull(true)
			s, err := c.Session(ctx)
			if err != nil {
				t.Fatal(err)
			}
			st.Link("site").Expire(s.ID())
		}
		time.Sleep(time.Minute)
		warnings := 0
		for _, line := range book.take() {
			if line == "WARN cannot serve because the service has no space, retrying" {
				warnings++
			}
		}
		if warnings != 4 { // once in each shortage; the last one lasts
			t.Errorf("%d warnings", warnings)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Serve has ended with %v", err)
		}
	})
}

// A shortage of space ends no membership: a member that has lost its session joins again when there is space. Leave ends the wait.
func TestNoSpace_AMemberJoinsAgainAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		book := new(logbook)
		c, err := coord.Open(t.Context(), st.Link("member"), &coord.Options{Logger: slog.New(book)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		group := coord.NewGroup[string](c, "/g", nil)
		loseSession := func() {
			t.Helper()
			s, err := c.Session(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			st.SetFull(true)
			st.Link("member").Expire(s.ID())
			time.Sleep(time.Hour)
		}
		members := func() (ids []string) {
			t.Helper()
			all, err := group.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range all {
				ids = append(ids, m.ID+"="+m.Value)
			}
			return ids
		}
		m, err := group.Join(t.Context(), "a", "one")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			loseSession()
			if ids := members(); len(ids) > 0 || m.Err() != nil {
				t.Fatalf("without space: members %q, %v", ids, m.Err())
			}
			st.SetFull(false)
			time.Sleep(2 * time.Second)
			if ids := members(); !slices.Equal(ids, []string{"a=one"}) {
				t.Fatalf("with space: members %q, %v", ids, m.Err())
			}
		}
		loseSession()
		if err := m.Leave(); err != nil {
			t.Error(err)
		}
		st.SetFull(false)
		time.Sleep(2 * time.Second)
		if ids := members(); len(ids) > 0 {
			t.Errorf("after Leave: members %q", ids)
		}
		warnings := 0
		for _, line := range book.take() {
			if line == "WARN cannot join again because the service has no space, retrying" {
				warnings++
			}
		}
		if warnings != 4 { // once in each shortage
			t.Errorf("%d warnings", warnings)
		}
	})
}

// A shortage of space ends no member of Shards: when there is space again, a member that has lost its session owns each shard again.
func TestNoSpace_AMemberOwnsItsShardsAgainAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c, err := coord.Open(t.Context(), st.Link("member"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		const n = 3
		owned := make(chan int)
		ended := make(chan error, 1)
		go func() {
			ended <- coord.NewShards(c, "/shards", n, nil).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
				owned <- sh.Index
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		ownAll := func() {
			t.Helper()
			var got []int
			for range n {
				select {
				case i := <-owned:
					got = append(got, i)
				case err := <-ended:
					t.Fatalf("Run has ended with %v, owned %v", err, got)
				}
			}
			if slices.Sort(got); !slices.Equal(got, []int{0, 1, 2}) {
				t.Fatalf("owned %v", got)
			}
		}
		ownAll()
		for range 3 {
			s, err := c.Session(ctx)
			if err != nil {
				t.Fatal(err)
			}
			st.SetFull(true)
			st.Link("member").Expire(s.ID())
			time.Sleep(time.Hour)
			st.SetFull(false)
			ownAll()
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run has ended with %v", err)
		}
	})
}
