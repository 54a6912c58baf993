package recipetest

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

// A process has the site's lock and is not present yet. A Propose waits for it, before it
// begins and while it waits for the vote. If the process goes away, the Propose does not wait
// any more.
func TestTwoPhase_AProposeWaitsForASiteThatIsComing(t *testing.T) {
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

// To know which sites are served costs a transaction one request, however many they are.
func TestTwoPhase_PresenceCostsOneRequest(t *testing.T) {
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

// All that is left of a finished transaction is the node of a dead proposer. The process that
// looked last waits for the end of that session, without a Recover.
func TestTwoPhase_TheLiveNodeOfADeadProposerIsRemovedWithItsRecord(t *testing.T) {
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
func TestTwoPhase_NothingIsCalledAfterAnAcknowledgementThatAServerDoesNotShowYet(t *testing.T) {
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
func TestTwoPhase_AFarDeadlineIsNotOver(t *testing.T) {
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
func TestTwoPhase_InspectCountsNoForeignNodeAsServed(t *testing.T) {
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

// The process that serves a site dies before its vote, and at that moment an outsider makes a
// persistent node in the place of its presence. The transaction aborts all the same, long before
// its deadline.
func TestTwoPhase_AForeignNodeDoesNotHideThatASiteIsGone(t *testing.T) {
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
func TestTwoPhase_InspectShowsPrepared(t *testing.T) {
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
func TestTwoPhase_ASiteIsLookedForBehindASync(t *testing.T) {
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
func TestTwoPhase_AnErrorOfPrepareAfterTheDeadlineIsNoVote(t *testing.T) {
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
