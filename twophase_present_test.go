package coord_test

import (
	"context"
	"encoding/json"
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
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

func unserved(u coord.Unserved) *coord.CoordinatorOptions[string] {
	return &coord.CoordinatorOptions[string]{Unserved: u}
}

// isAskedForEver is a Prepare that ends with its context.
func isAskedForEver(ctx context.Context, _ coord.Branch[string]) error {
	<-ctx.Done()
	return ctx.Err()
}

// proposed is the result of a Propose.
type proposed struct {
	d   coord.Decision
	err error
}

// proposeLater proposes in the background.
func proposeLater(co *coord.Coordinator[string], p coord.Proposal[string]) <-chan proposed {
	ch := make(chan proposed, 1)
	go func() {
		d, err := co.Propose(context.Background(), p)
		ch <- proposed{d, err}
	}()
	return ch
}

// A site was stopped before it is proposed to.
func TestASiteThatIsNotServedIsNamed(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a")
		b := &account{w: w, name: "b"}
		stop := b.serve(w.Open("site b", nil))
		w.served("b")
		stop()
		if left := w.Children("/tx/present"); !slices.Equal(left, []string{"a"}) {
			w.T.Errorf("present after Serve has returned: %v", left)
		}
		c := w.Open("co", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		d, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), p)
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if d.ID != "t1" || d.Zxid != 0 || err == nil || !strings.Contains(err.Error(), `site "b" is not served`) {
			w.T.Errorf("%+v, %v", d, err)
		}
		if left := w.Children("/tx/tx"); len(left) > 0 || len(w.Children("/tx/sites/a")) > 0 || list[0].did() != "[]" {
			w.T.Errorf("created nevertheless: %v; a did %s", left, list[0].did())
		}
		_, err = coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), w.proposal("t1", "a", "nobody"))
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if err == nil || !strings.Contains(err.Error(), `site "nobody" was never served`) {
			w.T.Error(err)
		}
		d = mustPropose(w.T, coord.NewCoordinator(c, "/tx", unserved(coord.AbortUnserved)), p)
		if d.Commit || d.By != "proposer" || d.Reason != `site "b" is not served` {
			w.T.Errorf("%+v", d)
		}
		_, err = coord.NewCoordinator(c, "/tx", unserved(3)).Propose(context.Background(), p)
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
	})
}

// A site is cut off before it has voted: its session ends, an hour before the deadline.
func TestASiteThatDiesBeforeItsVoteAborts(t *testing.T) {
	onEach(t, func(w *world) {
		list := w.accounts("a", "b")
		list[1].votes(isAskedForEver)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := proposeLater(coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), p)
		w.Eventually("b is asked", func() bool { return list[1].did() == "[prepare t1:p]" })
		began := time.Now()
		w.Link("site b").Partition()
		r := <-result
		if r.err != nil || r.d.Commit || r.d.By != "proposer" || r.d.Reason != `site "b" is not served` {
			w.T.Errorf("%+v", r)
		}
		if took := time.Since(began); w.Fake && took > w.Timeout {
			w.T.Errorf("took %v", took)
		}
		if left := w.Children("/tx/serving/b"); len(left) > 0 {
			w.T.Errorf("its session has not ended: %v", left)
		}
		w.Eventually("a aborts", func() bool { return list[0].did() == "[prepare t1:p abort t1:p]" })
		w.Link("site b").Heal()
		w.over("a", "b")
	})
}

// Another process waits for the site when the session of the first one ends: it votes.
func TestASiteThatIsTakenOverDoesNotAbort(t *testing.T) {
	onEach(t, func(w *world) {
		first, second := &account{w: w, name: "b"}, &account{w: w, name: "b"}
		first.votes(isAskedForEver)
		first.serve(w.Open("first", nil))
		w.served("b")
		second.serve(w.Open("second", nil))
		w.Eventually("the second waits", func() bool { return len(w.Children("/tx/serving/b")) == 2 })
		p := w.proposal("t1", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := proposeLater(coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), p)
		w.Eventually("the first is asked", func() bool { return first.did() == "[prepare t1:p]" })
		w.Link("first").Partition()
		if r := <-result; r.err != nil || !r.d.Commit {
			w.T.Errorf("%+v", r)
		}
		w.over("b")
		w.Link("first").Heal()
	})
}

// A process has the site's lock and is not present yet. A Propose waits for it, before it
// begins and while it waits for the vote. If the process goes away, the Propose does not wait
// any more.
func TestAProposeWaitsForASiteThatIsComing(t *testing.T) {
	for _, comes := range []bool{true, false} {
		for _, u := range []coord.Unserved{coord.FailUnserved, coord.AbortUnserved} {
			t.Run(fmt.Sprint("comes=", comes, ", Unserved ", u), func(t *testing.T) {
				onMemory(t, func(w *world) {
					b := &account{w: w, name: "b"}
					stop := b.serve(w.Open("first", nil))
					w.served("b")
					stop()
					let := make(chan struct{})
					stop = b.serve(w.Open("site b", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
						if coordtest.Creates(c) && strings.HasPrefix(c.Ops[len(c.Ops)-1].Path, "/tx/present/") {
							select {
							case <-let:
							case <-ctx.Done():
								return ctx.Err()
							}
						}
						return nil
					}}))
					w.Settle()
					result := proposeLater(coord.NewCoordinator(w.Open("co", nil), "/tx", unserved(u)), w.proposal("t1", "b"))
					w.Settle()
					if len(result) > 0 {
						w.T.Fatalf("it did not wait: %+v", <-result)
					}
					if comes {
						close(let)
					} else {
						stop()
					}
					r := <-result
					switch {
					case comes && (r.err != nil || !r.d.Commit):
						w.T.Errorf("%+v", r)
					case !comes && u == coord.FailUnserved:
						coordtest.WantErr(w.T, r.err, coord.ErrNotFound)
					case !comes && (r.err != nil || r.d.Reason != `site "b" is not served`):
						w.T.Errorf("%+v", r)
					}
				})
			})
		}
	}
}

// An outsider deletes the node that says that a site is served.
func TestAServedSiteRecreatesItsPresence(t *testing.T) {
	onEach(t, func(w *world) {
		w.accounts("a")
		s := w.Session("outsider")
		for range 2 {
			if _, err := s.Commit(context.Background(), backend.Delete(w.Path("/tx/present/a"), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			w.served("a")
		}
		if d := mustPropose(w.T, coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), w.proposal("t1", "a")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a")
	})
}

// To know which sites are served costs a transaction one request, however many they are.
func TestPresenceCostsOneRequest(t *testing.T) {
	onMemory(t, func(w *world) {
		for _, a := range w.accounts("a", "b", "c", "d") {
			a.votes(func(context.Context, coord.Branch[string]) error { time.Sleep(time.Millisecond); return nil }) // fake
		}
		for i, u := range []coord.Unserved{coord.AwaitUnserved, coord.FailUnserved} {
			var arms, looks atomic.Int32
			c := w.Open(fmt.Sprint("co ", i), &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
				switch c.Op {
				case "arm":
					arms.Add(1)
				case "sync", "exists":
					looks.Add(1)
				}
				return nil
			}})
			co := coord.NewCoordinator(c, "/tx", unserved(u))
			for id := range 2 { // the first makes directories
				arms.Store(0)
				looks.Store(0)
				mustPropose(w.T, co, w.proposal(fmt.Sprint("t", i, id), "a", "b", "c", "d"))
				w.Settle()
			}
			if n, m := arms.Load(), looks.Load(); int(n) != i || m != 0 {
				w.T.Errorf("Unserved %d: %d arms and %d looks", u, n, m)
			}
		}
	})
}

func TestASiteThatIsGoneForGoodIsRemoved(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		b := w.accounts("b")[0]
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		let := make(chan struct{})
		b.votes(func(ctx context.Context, tx coord.Branch[string]) error {
			select {
			case <-let:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", unserved(coord.AwaitUnserved))
		commit := proposeLater(co, w.proposal("commit", "a", "b"))
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(ctx, "commit")
			return err == nil && st.Sites[0].Yes
		})
		_, err := co.RemoveSite(ctx, "a")
		coordtest.WantErr(w.T, err, coord.ErrLocked)
		_, err = co.RemoveSite(ctx, "nobody")
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		stop()
		w.orphan("doubt", "a", backend.SetData(w.Path("/tx/sites/a/doubt~"+orphanMark), []byte("yes"), 0))
		w.Destroy(w.Path("/tx/tx/doubt"))
		undecided := proposeLater(co, w.proposal("undecided", "a", "b"))
		close(let)
		d := <-commit
		if d.err != nil || !d.d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.Eventually("the other transaction is created", func() bool { return len(w.Children("/tx/sites/a")) == 3 })
		list, err := co.RemoveSite(ctx, "a")
		if err != nil || len(list) != 1 || list[0].ID != "commit" || list[0].Zxid != d.d.Zxid || !list[0].Commit {
			w.T.Errorf("%+v, %v", list, err)
		}
		if r := <-undecided; r.err != nil || r.d.Commit || r.d.Reason != "the site was removed" {
			w.T.Errorf("%+v", r)
		}
		w.over("b")
		if slices.Contains(w.Children("/tx/sites"), "a") {
			w.T.Error("the inbox still exists")
		}
		_, err = co.Propose(ctx, w.proposal("t1", "a", "b"))
		coordtest.WantErr(w.T, err, coord.ErrNotFound)
		if got := a.did(); got != "[prepare commit:p]" {
			w.T.Error(got)
		}
		// The site can be served again.
		a.serve(w.Open("site a again", nil))
		w.served("a")
		if d := mustPropose(w.T, co, w.proposal("t1", "a", "b")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.over("a", "b")
	})
}

// A branch is created between RemoveSite's look at the inbox and its removal.
func TestASiteIsRemovedWhileItIsProposedTo(t *testing.T) {
	onEach(t, func(w *world) {
		stop := (&account{w: w, name: "a"}).serve(w.Open("site a", nil))
		w.served("a")
		stop()
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", unserved(coord.AwaitUnserved))
		var result <-chan proposed
		var x coordtest.Nth
		x.Arm(1, func(c backendtest.Call) bool {
			return coordtest.Deletes(c) && c.Ops[len(c.Ops)-1].Path == w.Path("/tx/sites/a")
		},
			func(context.Context, backendtest.Call, error) error {
				result = proposeLater(co, w.proposal("t1", "a"))
				w.Eventually("it is made", func() bool { return len(w.Children("/tx/sites/a")) == 1 })
				return nil
			})
		remover := coord.NewCoordinator[string](w.Open("remover", &backendtest.Hooks{Before: x.Before}), "/tx", nil)
		list, err := remover.RemoveSite(context.Background(), "a")
		if len(list) > 0 || err != nil {
			w.T.Errorf("%+v, %v", list, err)
		}
		if r := <-result; r.err != nil || r.d.Commit || r.d.Reason != "the site was removed" {
			w.T.Errorf("%+v", r)
		}
		w.over()
		// A foreign node is not removed.
		if _, err := w.Session("operator").Commit(context.Background(),
			backend.Create(w.Path("/tx/sites/a"), nil, backend.Persistent),
			backend.Create(w.Path("/tx/sites/a/README"), nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		_, err = remover.RemoveSite(context.Background(), "a")
		coordtest.WantErr(w.T, err, backend.ErrNotEmpty)
	})
}

// A proposer that gives up does not abort a transaction that another one proposes too.
func TestAProposerThatGivesUpDoesNotAbortForAnother(t *testing.T) {
	onEach(t, func(w *world) {
		a := w.accounts("a")[0]
		let := make(chan struct{})
		a.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Hour)
		first, giveUp := context.WithCancel(context.Background())
		gone := make(chan error, 1)
		c := w.Open("first", nil)
		go func() {
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(first, p)
			gone <- err
		}()
		result := proposeLater(coord.NewCoordinator[string](w.Open("second", nil), "/tx", nil), p)
		live := func() (n int) {
			for _, name := range w.Children("/tx/tx/t1") {
				if strings.HasPrefix(name, "live-") {
					n++
				}
			}
			return n
		}
		w.Eventually("both propose", func() bool { return live() == 2 })
		giveUp()
		coordtest.WantErr(w.T, <-gone, context.Canceled)
		c.Close() // waits for the clean-up of the first one
		if live() != 1 {
			w.T.Errorf("%d live nodes", live())
		}
		close(let)
		if r := <-result; r.err != nil || !r.d.Commit {
			w.T.Errorf("%+v", r)
		}
		w.over("a")
	})
}

// All that is left of a finished transaction is the node of a dead proposer. The process that
// looked last waits for the end of that session, without a Recover.
func TestTheLiveNodeOfADeadProposerIsRemovedWithItsRecord(t *testing.T) {
	for _, last := range []string{"a proposer", "a site"} {
		t.Run(last, func(t *testing.T) {
			onMemory(t, func(w *world) {
				a := &account{w: w, name: "a"}
				stop := a.serve(w.Open("site a", nil))
				w.served("a")
				let := make(chan struct{})
				a.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
				c := w.Open("A", nil)
				go coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), w.proposal("t1", "a"))
				w.Settle()
				w.Link("A").Partition()
				if last == "a site" {
					w.Service.(coordtest.MemoryService).Store.Link("site a").SetLatency(50 * time.Millisecond)
				} else {
					w.Service.(coordtest.MemoryService).Store.Link("B").SetLatency(50 * time.Millisecond)
				}
				go func() { time.Sleep(time.Second); close(let) }()
				mustPropose(w.T, coord.NewCoordinator[string](w.Open("B", nil), "/tx", nil), w.proposal("t1", "a"))
				time.Sleep(2 * w.Timeout)
				if left := w.Children("/tx/tx"); len(left) > 0 {
					w.T.Errorf("left: %v: %v", left, w.Children("/tx/tx/t1"))
				}
				w.Link("A").Heal()
				stop()
			})
		})
	}
}

// past is a backend that shows transactions as they were, until a Sync.
type past struct {
	backend.Backend
	mu   sync.Mutex
	tree map[string]pastNode // nil when it has caught up
}

type pastNode struct {
	data  []byte
	stat  backend.Stat
	names []string
}

type pastSession struct {
	backend.Session
	p *past
}

func (p *past) Open(ctx context.Context) (backend.Session, error) {
	s, err := p.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &pastSession{s, p}, nil
}

// keep saves the current nodes at and below the paths.
func (p *past) keep(s backend.Session, paths ...string) {
	tree := make(map[string]pastNode)
	for i := 0; i < len(paths); i++ {
		data, stat, err := s.Get(context.Background(), paths[i], nil)
		names, _, err2 := s.Children(context.Background(), paths[i], nil)
		if err = errors.Join(err, err2); errors.Is(err, backend.ErrNotFound) {
			continue // the proposer is just leaving
		} else if err != nil {
			panic(err)
		}
		tree[paths[i]] = pastNode{data, stat, names}
		for _, name := range names {
			paths = append(paths, paths[i]+"/"+name)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tree = tree
}

func (s *pastSession) at(path string) (pastNode, bool) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	n, ok := s.p.tree[path]
	return n, ok
}

func (s *pastSession) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	if n, ok := s.at(path); ok {
		return n.data, n.stat, nil
	}
	return s.Session.Get(ctx, path, w)
}

func (s *pastSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	if n, ok := s.at(path); ok {
		return n.stat, nil
	}
	return s.Session.Exists(ctx, path, w)
}

func (s *pastSession) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	if n, ok := s.at(path); ok {
		return n.names, n.stat, nil
	}
	return s.Session.Children(ctx, path, w)
}

func (s *pastSession) Sync(ctx context.Context, path string) error {
	s.p.mu.Lock()
	s.p.tree = nil
	s.p.mu.Unlock()
	return s.Session.Sync(ctx, path)
}

// A process has acknowledged a commit and ends. The server of the next process does not show
// that yet.
func TestNothingIsCalledAfterAnAcknowledgementThatAServerDoesNotShowYet(t *testing.T) {
	onMemory(t, func(w *world) {
		reader := w.Session("reader")
		old := &past{Backend: w.Link("second")}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- coord.NewParticipant(w.Open("first", nil), "/tx", "a", coord.Handler[string]{
				Prepare: nothing, Abort: nothing,
				Commit: func(context.Context, coord.Branch[string]) error {
					old.keep(reader, "/tx/tx/t1", "/tx/sites/a")
					return nil
				},
			}).Serve(ctx)
		}()
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		mustPropose(w.T, co, w.proposal("t1", "a"))
		w.over("a")
		stop()
		<-ended
		a := &account{w: w, name: "a"}
		stopped := a.serve(coordtest.Open(w.T, old, nil))
		w.served("a")
		w.Settle()
		if got := a.did(); got != "[]" {
			w.T.Errorf("after the acknowledgement: %s", got)
		}
		stopped()
	})
}

// Deadlines that no clock reaches.
func TestAFarDeadlineIsNotOver(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")[0].votes(isAskedForEver)
		c := w.Open("co", nil)
		co := coord.NewCoordinator[string](c, "/tx", nil)
		for i, far := range []time.Time{time.Unix(1<<62, 0), time.Unix(1<<54, 0), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)} {
			ctx, cancel := context.WithCancel(context.Background())
			id := fmt.Sprint("t", i)
			ended := make(chan error)
			go func() {
				_, err := co.Propose(ctx, coord.Proposal[string]{ID: id, Sites: []string{"a"}, Deadline: far})
				ended <- err
			}()
			w.Settle()
			st, err := co.Status(ctx, id)
			if err != nil || st.Decided || st.Deadline.UTC().Year() != 9999 {
				w.T.Errorf("%v: %+v, %v", far, st, err)
			}
			in, err := inspect.Path(ctx, c, "/tx", nil)
			if err != nil || in.TwoPhase == nil || in.TwoPhase.Transactions[0].Overdue {
				w.T.Errorf("%v\n%s", err, in)
			}
			if _, err := json.Marshal(in); err != nil {
				w.T.Error(err)
			}
			cancel()
			coordtest.WantErr(w.T, <-ended, context.Canceled)
			w.Settle()
			if _, err := co.Recover(context.Background()); err != nil {
				w.T.Error(err)
			}
			w.over("a")
		}
	})
}

// A foreign node in the directory of a site's lock does not serve the site.
func TestInspectCountsNoForeignNodeAsServed(t *testing.T) {
	onMemory(t, func(w *world) {
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		stop()
		if _, err := w.Session("outsider").Commit(context.Background(), backend.Create("/tx/serving/a/README", nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		c := w.Open("inspector", nil)
		for path, site := range map[string]func(*inspect.Report) inspect.Site{
			"/tx":         func(in *inspect.Report) inspect.Site { return in.TwoPhase.Sites[0] },
			"/tx/sites/a": func(in *inspect.Report) inspect.Site { return *in.Inbox },
		} {
			w.orphan("t-"+path[len(path)-1:], "a")
			in, err := inspect.Path(context.Background(), c, path, nil)
			if err != nil || site(in).Served {
				w.T.Errorf("%v\n%s", err, in)
			}
		}
	})
}

// A persistent node in the place of a site's presence, as a restored backup or a copied tree has
// it, does not serve the site.
func TestAForeignNodeServesNoSite(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		stop()
		w.commit(backend.Create(w.Path("/tx/present/a"), nil, backend.Persistent))
		w.orphan("t", "a")
		c := w.Open("c", nil)
		st, err := coord.NewCoordinator[string](c, "/tx", nil).Status(ctx, "t")
		if err != nil || st.Sites[0].Served {
			w.T.Errorf("Status: %+v, %v", st, err)
		}
		in, err := inspect.Path(ctx, c, "/tx", nil)
		if err != nil || in.TwoPhase.Sites[0].Served || in.TwoPhase.Transactions[0].Votes[0].Served {
			w.T.Errorf("%v\n%s", err, in)
		}
		in, err = inspect.Path(ctx, c, "/tx/sites/a", nil)
		if err != nil || in.Inbox.Served {
			w.T.Errorf("%v\n%s", err, in)
		}
		// A process that serves the site replaces the node.
		a.serve(w.Open("site a again", nil))
		w.Eventually("the site is served", func() bool {
			st, err := coord.NewCoordinator[string](c, "/tx", nil).List(ctx)
			return err == nil && st[0].Sites[0].Served
		})
	})
}

// The process that serves a site dies before its vote, and at that moment an outsider makes a
// persistent node in the place of its presence. The transaction aborts all the same, long before
// its deadline.
func TestAForeignNodeDoesNotHideThatASiteIsGone(t *testing.T) {
	onMemory(t, func(w *world) {
		b := w.accounts("b")[0]
		b.votes(isAskedForEver)
		var before coordtest.Nth
		co := coord.NewCoordinator[string](w.Open("co", &backendtest.Hooks{Before: before.Before}), "/tx", nil)
		p := w.proposal("t1", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := proposeLater(co, p)
		w.Eventually("b is asked", func() bool { return b.did() == "[prepare t1:p]" })
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "sync" && c.Path == "/tx/present/b" }, func(context.Context, backendtest.Call, error) error {
			w.commit(backend.Create("/tx/present/b", nil, backend.Persistent))
			return nil
		})
		began := time.Now()
		w.Link("site b").Partition()
		r := <-result
		if r.err != nil || r.d.Commit || r.d.Reason != `site "b" is not served` {
			w.T.Errorf("%+v", r)
		}
		if took := time.Since(began); took > w.Timeout {
			w.T.Errorf("took %v", took)
		}
		w.Link("site b").Heal()
		w.over("b")
	})
}

// All sites have voted, and no process decides: the proposer is dead.
func TestInspectShowsPrepared(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")
		w.orphan("t1", "a")
		w.Settle()
		c := w.Open("inspector", nil)
		in, err := inspect.Path(context.Background(), c, "/tx", nil)
		if err != nil || in.TwoPhase.Transactions[0].State != "prepared" {
			w.T.Errorf("%v\n%s", err, in)
		}
		in, err = inspect.Path(context.Background(), c, "/tx/sites/a", nil)
		if err != nil || in.Inbox.Branches[0].State != "prepared" {
			w.T.Errorf("%v\n%s", err, in)
		}
	})
}

// A site that is not present is looked for after a Sync: the server may not show yet that it is
// served.
func TestASiteIsLookedForBehindASync(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		last, looks := "", 0
		c := w.Open("co", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Path == w.Path("/tx/present/a") {
				if c.Op == "exists" {
					if looks++; last != "sync" {
						w.T.Errorf("the site was looked for after a %q", last)
					}
				}
				last = c.Op
			}
			return err
		}})
		ctx, stop := context.WithCancel(context.Background())
		asked := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- coord.NewParticipant(w.Open("site a", nil), "/tx", "a", coord.Handler[string]{
				Prepare: func(ctx context.Context, _ coord.Branch[string]) error {
					close(asked)
					<-ctx.Done()
					return ctx.Err()
				},
				Commit: nothing, Abort: nothing,
			}).Serve(ctx)
		}()
		w.served("a")
		co := coord.NewCoordinator[string](c, "/tx", nil)
		go func() {
			<-asked
			stop()
		}()
		d := mustPropose(w.T, co, w.proposal("t", "a"))
		coordtest.WantErr(w.T, <-ended, context.Canceled)
		mu.Lock()
		defer mu.Unlock()
		if d.Commit || looks == 0 {
			w.T.Errorf("%+v after %d looks for the site", d, looks)
		}
	})
}

// An error that Prepare returns after its ctx has ended is no vote: the site did not refuse, it
// was too late.
func TestAnErrorOfPrepareAfterTheDeadlineIsNoVote(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- coord.NewParticipant(w.Open("site a", nil), "/tx", "a", coord.Handler[string]{
				Prepare: func(ctx context.Context, _ coord.Branch[string]) error {
					w.Link("co").Partition() // else the proposer would decide at the deadline
					<-ctx.Done()
					return errors.New("given up")
				},
				Commit: nothing, Abort: nothing,
			}).Serve(ctx)
		}()
		w.served("a")
		type result struct {
			d   coord.Decision
			err error
		}
		proposed := make(chan result, 1)
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		go func() {
			p := w.proposal("t", "a")
			p.Deadline = time.Now().Add(10 * time.Second)
			d, err := co.Propose(context.Background(), p)
			proposed <- result{d, err}
		}()
		time.Sleep(12 * time.Second) // of fake time: the deadline has passed
		w.Settle()
		w.Link("co").Heal()
		r := <-proposed
		if r.err != nil || r.d.Commit || r.d.By != "site a" || r.d.Reason != "votes were missing at the deadline" {
			w.T.Errorf("%+v, %v", r.d, r.err)
		}
		stop()
		coordtest.WantErr(w.T, <-ended, context.Canceled)
	})
}

// A process loses the lock of its site, but not its session. When it comes to withdraw its presence,
// the node is that of the next process, which it does not delete.
func TestTwoPhase_WithdrawalLeavesThePresenceOfTheSuccessor(t *testing.T) {
	onMemory(t, func(w *world) {
		entered, proceed := make(chan struct{}), make(chan struct{})
		w.serveSite(w.Open("first", nil), coord.Handler[string]{
			Prepare: func(context.Context, coord.Branch[string]) error {
				close(entered)
				<-proceed
				return nil
			},
			Commit: nothing, Abort: nothing,
		})
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Hour)
		decided := proposeLater(co, p)
		<-entered
		w.serveSite(w.Open("second", nil), coord.Handler[string]{
			Prepare: func(context.Context, coord.Branch[string]) error { return nil },
			Commit:  nothing, Abort: nothing,
		})
		w.Settle()
		before, err := w.stat("/tx/present/a")
		w.must(err)
		w.commit(backend.Delete(w.Path("/tx/serving/a/"+lowest(w.Children("/tx/serving/a"))), backend.AnyVersion))
		time.Sleep(time.Second) // both processes have learnt of it
		next, err := w.stat("/tx/present/a")
		w.must(err)
		if next.EphemeralOwner == before.EphemeralOwner {
			w.T.Fatal("the second process does not serve the site")
		}
		close(proceed)
		time.Sleep(time.Second)
		now, err := w.stat("/tx/present/a")
		if err != nil || now != next {
			w.T.Errorf("the presence of the second process was deleted: %+v, %v, want %+v", now, err, next)
		}
		if got := receive(w, "a decision", decided); got.err != nil || !got.d.Commit {
			w.T.Errorf("%+v, %v", got.d, got.err)
		}
	})
}

// lowest returns the name with the lowest number.
func lowest(names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
}
