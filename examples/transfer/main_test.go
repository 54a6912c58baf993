package main

import (
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/examples/internal/exampletest"
	"github.com/go-coord/coord/examples/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheProgramRuns(t *testing.T) {
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error {
		return run(ctx, b, []string{"ann", "bob"}, Transfer{From: "ann", To: "bob", Amount: 30})
	}, `committed|books`, `committed|books`, `committed|books`)
}

func TestTheSumOfTheAccountsStaysTheSame(t *testing.T) {
	exampletest.Tells(t, "transfer", story,
		`at first: ann has 100, bob has 20`,
		`office +t-1, 30 from ann to bob, is committed`,
		`now: ann has 70, bob has 50`,
		`office +t-2, 500 from ann to bob, is aborted by site ann: 70 is not enough for 500`,
		`now: ann has 70, bob has 50`,
		`office +t-3, 25 from ann to bob, is committed`,
		`bob +has voted yes, and is killed before the booking`,
		`now: ann has 45, bob has 50, and 25 are on the way`,
		`bob +is started again`,
		`now: ann has 45, bob has 75`,
		`office +t-4, 75 from bob to ann, is committed`,
		`now: ann has 120, bob has 0`,
		`office +another one is killed while it proposes t-5`,
		`office +t-5, 20 from ann to bob, is committed`,
		`now: ann has 100, bob has 20`,
	)
}

func TestAnAccountBooksOnceHoweverOftenItIsCalled(t *testing.T) {
	a := &account{balance: 10, pending: make(map[int64]int)}
	for range 2 {
		if err := a.prepare(1, -7); err != nil {
			t.Fatal(err)
		}
		if err := a.prepare(2, 5); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.prepare(3, -4); err == nil {
		t.Error("7 of 10 are set aside, and 4 can still be spent")
	}
	for range 2 {
		a.commit(1)
		a.commit(2)
		a.abort(3)
	}
	if got, pending := a.read(); got != 8 || pending != 0 {
		t.Errorf("%d and %d pending, want 8", got, pending)
	}
	for range 2 {
		if err := a.prepare(4, -8); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		a.abort(4)
	}
	if got, pending := a.read(); got != 8 || pending != 0 {
		t.Errorf("after an abort %d and %d pending, want 8", got, pending)
	}
}

// lateLink is the link of a client whose request to make t-5 is under way when the client is
// killed, and arrives when land is called.
type lateLink struct {
	*memory.Link
	intercepted backend.Backend

	mu   sync.Mutex
	held *backendtest.Call
	dead bool
}

func newLateLink(l *memory.Link) *lateLink {
	late := &lateLink{Link: l}
	late.intercepted = backendtest.Intercept(l, backendtest.Hooks{Before: late.before})
	return late
}

func (l *lateLink) Open(ctx context.Context) (backend.Session, error) { return l.intercepted.Open(ctx) }

func (l *lateLink) before(ctx context.Context, c backendtest.Call) error {
	l.mu.Lock()
	if !l.dead && c.Op == "commit" && c.Ops[0].Kind == backend.OpCreate && strings.HasSuffix(c.Path, "/tx/t-5") {
		l.held = &c
	}
	silent := l.dead || l.held != nil
	l.mu.Unlock()
	if !silent {
		return nil
	}
	select {
	case <-ctx.Done():
		return backend.Uncertain(backend.ContextError(ctx))
	case <-c.Session.Done():
		return backend.Uncertain(backend.ErrSessionLost)
	}
}

func (l *lateLink) Partition() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

// land forwards the request, and then cuts the link. It reports whether there was one.
func (l *lateLink) land(t *testing.T) bool {
	l.mu.Lock()
	c := l.held
	dead := l.dead
	l.mu.Unlock()
	if !dead || c == nil {
		return false
	}
	if _, err := c.Session.Commit(context.Background(), c.Ops...); err != nil {
		t.Errorf("the late request: %v", err)
	}
	l.Link.Partition()
	return true
}

// The request of the dead coordinator arrives when its transfer has been completed, and
// Recover has found nothing to do.
func TestAProposalThatArrivesLateIsNotExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(&memory.Options{SessionTimeout: time.Second})
		var victim atomic.Pointer[lateLink] // the office's clean-up reads it at any time
		listed, landed := 0, false
		s := service.New("/late", time.Second, func(name string) service.Link {
			l := store.Link(name)
			switch name {
			case "another office":
				late := newLateLink(l)
				victim.Store(late)
				return late
			case "office":
				office := newLateLink(l)
				office.intercepted = backendtest.Intercept(l, backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if victim.Load() == nil || c.Op != "sync" || !strings.HasSuffix(c.Path, "/transfers/tx") {
						return nil
					}
					// The first is Recover's, the second List's.
					if listed++; listed == 2 {
						synctest.Wait() // every process is idle
						landed = victim.Load().land(t)
					}
					return nil
				}})
				return office
			}
			return l
		}, io.Discard)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := story(ctx, s); err != nil {
			t.Error(err)
		}
		if !landed {
			t.Error("nothing arrived late")
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
