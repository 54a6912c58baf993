package recipetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/trace"
)

// traceRestTests are tests of Trace on each service.
type traceRestTests struct{ Services }

func (on traceRestTests) TheEventsOfABarrier(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		b := coord.NewBarrier(c, "/b", nil)
		if err := errors.Join(b.Wait(ctx), b.Set(ctx)); err != nil {
			w.T.Fatal(err)
		}
		x.want("called BarrierSet barrier /b set node=")
		done := make(chan error)
		go func() { done <- b.Wait(ctx) }()
		x.want("#1 called WaitBegan barrier /b wait node= ahead=-1")
		if err := b.Remove(ctx); err != nil {
			w.T.Fatal(err)
		}
		if err := <-done; err != nil {
			w.T.Fatal(err)
		}
		x.want("called BarrierRemoved barrier /b remove node=",
			"#1 called WaitEnded barrier /b wait node= err=nil")
	})
}

func (on traceRestTests) TheEventsOfADoubleBarrier(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		y, d := w.taped("b", nil)
		enter := func(c *coord.Client, ctx context.Context) chan *coord.Entry {
			done := make(chan *coord.Entry, 1)
			go func() {
				e, err := coord.NewDoubleBarrier(c, "/d", 2, nil).Enter(ctx)
				if err != nil && ctx.Err() == nil {
					w.T.Error(err)
				}
				done <- e
			}()
			return done
		}
		giveUp, cancel := context.WithCancel(ctx)
		gone := enter(c, giveUp)
		x.want("#1 called WaitBegan doublebarrier /d enter node=/members/*member-* ahead=-1")
		cancel()
		<-gone
		x.want("#1 called WaitEnded doublebarrier /d enter node=/members/*member-* err=canceled")
		w.Empty("/d/members")

		first := enter(c, ctx)
		x.want("#2 called WaitBegan doublebarrier /d enter node=/members/*member-* ahead=-1")
		b := <-enter(d, ctx)
		y.want("#1 called RoundOpened doublebarrier /d enter node=/members/*member-* members=2",
			"#1 called HoldGranted doublebarrier /d enter node=/members/*member-* token=false weight=1")
		a := <-first
		x.want("#2 called HoldGranted doublebarrier /d enter node=/members/*member-* token=false weight=1")
		left := make(chan error)
		go func() { left <- a.Leave(ctx) }()
		x.want("#2 HoldReleased doublebarrier /d enter node=/members/*member-* token=false err=nil",
			"#2 called WaitBegan doublebarrier /d leave node=/members/*member-* ahead=-1")
		if err := b.Release(); err != nil {
			w.T.Fatal(err)
		}
		if err := <-left; err != nil {
			w.T.Fatal(err)
		}
		x.want("#2 called WaitEnded doublebarrier /d leave node=/members/*member-* err=nil")
		y.want("#1 HoldReleased doublebarrier /d enter node=/members/*member-* token=false err=nil")
	})
}

func (on traceRestTests) TheEventsOfAQueue(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxAttempts: 3})
		take := func() *coord.Item[int] {
			w.T.Helper()
			it, err := q.Take(ctx)
			if err != nil {
				w.T.Fatal(err)
			}
			return it
		}
		y, d := w.taped("b", nil)
		put := coord.NewQueue[int](d, "/q", &coord.QueueOptions[int]{MaxLen: 1})
		const item = "node=/items/b-0-0/i-*-0-* "
		taken := make(chan *coord.Item[int])
		go func() { taken <- take() }()
		x.want("#1 called WaitBegan queue /q take ahead=-1")
		if _, err := put.Put(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		y.want("#1 called ItemsPut queue /q put items=1")
		it := <-taken
		x.want("#1 called WaitEnded queue /q take err=nil",
			"#2 called ItemClaimed queue /q take "+item+"item=1 attempt=1 token=true")
		if err := it.Nack(time.Millisecond); err != nil {
			w.T.Fatal(err)
		}
		x.want("#2 ItemSettled queue /q take " + item + "item=1 attempt=1 nacked delay=1ms err=nil")

		w.Eventually("it can be taken again", func() bool {
			it, err := q.TryTake(ctx)
			if err == nil {
				err = it.Release()
			}
			return err == nil
		})
		x.want("#3 called ItemClaimed queue /q take "+item+"item=1 attempt=2 token=true",
			"#3 ItemSettled queue /q take "+item+"item=1 attempt=2 returned delay=0s err=nil")
		it = take()
		w.Link("a").Expire(it.Session())
		x.want("#4 called ItemClaimed queue /q take "+item+"item=1 attempt=2 token=true",
			"#4 ItemSettled queue /q take "+item+"item=1 attempt=2 lost delay=0s err=lost")
		<-it.Done()

		// A producer that waits for room.
		full := make(chan error)
		go func() {
			_, err := put.Put(ctx, 2)
			full <- err
		}()
		y.want("#2 called WaitBegan queue /q put ahead=-1")
		if err := take().Nack(0); err != nil {
			w.T.Fatal(err)
		}
		x.want("#5 called ItemClaimed queue /q take "+item+"item=1 attempt=3 token=true",
			"#5 ItemSettled queue /q take "+item+"item=1 attempt=3 dead delay=0s err=nil")
		if err := <-full; err != nil {
			w.T.Fatal(err)
		}
		y.want("#2 called WaitEnded queue /q put err=nil", "#2 called ItemsPut queue /q put items=1")

		if v, err := q.Pop(ctx); v != 2 || err != nil {
			w.T.Fatal(v, err)
		}
		x.want("#6 called ItemClaimed queue /q take "+item+"item=2 attempt=1 token=true",
			"#6 ItemSettled queue /q take "+item+"item=2 attempt=1 acked delay=0s err=nil")
		giveUp, cancel := context.WithCancel(ctx)
		go func() {
			_, err := q.Take(giveUp)
			full <- err
		}()
		x.want("#7 called WaitBegan queue /q take ahead=-1")
		cancel()
		<-full
		x.want("#7 called WaitEnded queue /q take err=canceled")
	})
}

// One item cannot be decoded, and one was taken too often by consumers that died.
func (on traceRestTests) TheEventsOfItemsThatBecomeDeadLetters(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		const item = "node=/items/b-0-0/i-*-0-* "
		x, c := w.taped("a", nil)
		q := coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		if _, err := coord.NewQueue[string](w.Open("b", nil), "/q", nil).Put(ctx, "no number"); err != nil {
			w.T.Fatal(err)
		}
		if _, err := q.TryTake(ctx); err != coord.ErrEmpty && !errors.Is(err, coord.ErrEmpty) {
			w.T.Fatal(err)
		}
		x.want("#1 called ItemClaimed queue /q take "+item+"item=1 attempt=1 token=true",
			"#1 ItemSettled queue /q take "+item+"item=1 attempt=1 dead delay=0s err=nil")
		if _, err := coord.NewQueue[int](w.Open("b", nil), "/q", nil).Put(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		it, err := q.Take(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("a").Expire(it.Session())
		<-it.Done()
		x.want("#2 called ItemClaimed queue /q take "+item+"item=2 attempt=1 token=true",
			"#2 ItemSettled queue /q take "+item+"item=2 attempt=1 lost delay=0s err=lost")
		if _, err := q.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
			w.T.Fatal(err)
		}
		x.want("ItemSettled queue /q take " + item + "item=2 attempt=1 dead delay=0s err=nil")
	})
}

func (on traceRestTests) TheEventsOfAMember(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		g := coord.NewGroup[string](c, "/g", nil)
		m, err := g.Join(ctx, "me", "here")
		if err != nil {
			w.T.Fatal(err)
		}
		x.want("called MemberJoined group /g join node=/*member-me-* token=true member=me again=false")
		s, err := c.Session(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("a").Expire(s.ID())
		x.want("MemberLeft group /g node=/*member-me-* member=me rejoins=true left=false",
			"MemberJoined group /g node=/*member-me-* token=true member=me again=true")
		if err := m.Leave(); err != nil {
			w.T.Fatal(err)
		}
		x.want("MemberLeft group /g node=/*member-me-* member=me rejoins=false left=true")
		m, err = g.Join(ctx, "me", "here")
		if err != nil {
			w.T.Fatal(err)
		}
		other := coord.NewGroup(w.Open("b", nil), "/g", &coord.GroupOptions[string]{TakeOver: true})
		if _, err := other.Join(ctx, "me", "there"); err != nil {
			w.T.Fatal(err)
		}
		<-m.Done()
		x.want("called MemberJoined group /g join node=/*member-me-* token=true member=me again=false",
			"MemberLeft group /g node=/*member-me-* member=me rejoins=true left=false",
			"MemberLeft group /g node=/*member-me-* member=me rejoins=false left=false")
	})
}

func (on traceRestTests) TheEventsOfACache(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := called(context.Background())
		x, c := w.taped("a", nil)
		v := coord.NewValue[int](w.Open("b", nil), "/c/a", nil)
		if _, err := v.Set(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		run, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- coord.NewCache(c, "/c", nil).Run(run) }()
		x.want("called CacheSynced cache /c run node= nodes=2 again=false")
		s, err := c.Session(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("a").Expire(s.ID())
		x.want("called CacheSynced cache /c run node= nodes=2 again=true")
		cancel()
		<-ended
		x.want()
		go func() { ended <- coord.NewCache(c, "/c", &coord.CacheOptions{MaxNodes: 1}).Run(ctx) }()
		<-ended
		x.want("called CacheStopped cache /c run node= err=limit")
	})
}

func (on traceRestTests) TheEventsOfATransaction(t *testing.T) {
	on.each(t, func(w *world) {
		x, c := w.taped("co", nil)
		y, d := w.taped("site", nil)
		ctx := called(context.Background())
		no := errors.New("no")
		var verdict error
		site := coord.NewParticipant(d, "/tx", "s", coord.Handler[string]{
			Prepare: func(context.Context, coord.Branch[string]) error { return verdict },
			Commit:  nothing, Abort: nothing,
		})
		serve, stop := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- site.Serve(serve) }()
		y.want("#1 called HoldGranted mutex /tx/serving/s lock node=/*lock-* token=true weight=1")
		w.served("s")

		co := coord.NewCoordinator[string](c, "/tx", nil)
		o, err := co.Propose(ctx, coord.Proposal[string]{ID: "one", Sites: []string{"s"}})
		if err != nil || !o.Commit {
			w.T.Fatal(o, err)
		}
		x.want("called ProposalMade twophase /tx propose node=/tx/one tx=one sites=1",
			"called ProposalDecided twophase /tx propose node=/tx/one tx=one site= commit=true by=proposer")
		y.want("called ProposalVoted twophase /tx serve node=/sites/s/one~* tx=one site=s yes=true",
			"called ProposalDecided twophase /tx serve node=/sites/s/one~* tx=one site=s commit=true by=proposer",
			"DecisionsUndone twophase /tx serve node=/sites/s site=s undone=1 failing=0",
			"called ProposalAcked twophase /tx serve node=/sites/s/one~* tx=one site=s commit=true",
			"DecisionsUndone twophase /tx serve node=/sites/s site=s undone=0 failing=0")
		w.Empty("/tx/tx")

		verdict = no
		o, err = co.Propose(ctx, coord.Proposal[string]{ID: "two", Sites: []string{"s"}})
		if err != nil || o.Commit {
			w.T.Fatal(o, err)
		}
		x.want("called ProposalMade twophase /tx propose node=/tx/two tx=two sites=1",
			"called ProposalDecided twophase /tx propose node=/tx/two tx=two site= commit=false by=site s")
		y.want("called ProposalVoted twophase /tx serve node=/sites/s/two~* tx=two site=s yes=false",
			"DecisionsUndone twophase /tx serve node=/sites/s site=s undone=1 failing=0",
			"called ProposalAcked twophase /tx serve node=/sites/s/two~* tx=two site=s commit=false",
			"DecisionsUndone twophase /tx serve node=/sites/s site=s undone=0 failing=0")
		stop()
		<-ended
		y.want("#1 HoldReleased mutex /tx/serving/s lock node=/*lock-* token=true err=nil")

		// A transaction that its proposer has given up.
		giveUp, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() {
			co := coord.NewCoordinator(c, "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
			_, err := co.Propose(giveUp, coord.Proposal[string]{ID: "three", Sites: []string{"s"}})
			done <- err
		}()
		x.want("called ProposalMade twophase /tx propose node=/tx/three tx=three sites=1")
		cancel()
		<-done
		if list, err := co.Recover(ctx); len(list) != 1 || err != nil {
			w.T.Fatal(list, err)
		}
		var e trace.ProposalDecided
		w.Eventually("the decision of Recover is reported", func() bool {
			e = lastOf[trace.ProposalDecided](w.T, x)
			return e.Op == "recover"
		})
		if e.Proposal != "three" || e.Commit {
			w.T.Errorf("%+v", e)
		}
	})
}
