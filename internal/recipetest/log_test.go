package recipetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// A client logs these lines, and no others, when it meets these losses, refusals and retries. No line
// contains data of a node.
func TestLog_ReportsWhatAnOperatorShouldKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := new(logbook)
		logged(t, slog.New(book), func(lines ...string) {
			t.Helper()
			got := book.take()
			slices.Sort(got) // several goroutines report one lost session
			slices.Sort(lines)
			if !slices.Equal(got, lines) {
				t.Errorf("logged %q, want %q", got, lines)
			}
		})
		if text := book.full.String(); strings.Contains(text, secret) {
			t.Errorf("data of a node in the log:\n%s", text)
		}
		// Each message names a path or a session.
		for line := range strings.Lines(book.full.String()) {
			if !regexp.MustCompile(` (path|session)=\S`).MatchString(line) {
				t.Errorf("neither path nor session: %s", line)
			}
		}
	})
}

func TestLog_IsEmptyWithoutALogger(t *testing.T) {
	book := new(logbook)
	// Both packages: SetDefault leads the messages of package log to the handler too.
	def, out, flags := slog.Default(), log.Writer(), log.Flags()
	defer func() {
		slog.SetDefault(def)
		log.SetOutput(out)
		log.SetFlags(flags)
	}()
	slog.SetDefault(slog.New(book))
	synctest.Test(t, func(t *testing.T) {
		logged(t, nil, func(...string) {
			t.Helper()
			if got := book.take(); len(got) > 0 {
				t.Errorf("logged %q", got)
			}
		})
	})
}

const secret = "xyzzy"

// logged plays the events that an operator should find in the log, with data that must not be
// there.
func logged(t *testing.T, logger *slog.Logger, want func(lines ...string)) {
	ctx := t.Context()
	st := memory.New(&memory.Options{SessionTimeout: 3 * time.Second})
	var after, before coordtest.Nth
	link := st.Link("a")
	c := coordtest.Open(t, backendtest.Intercept(link, backendtest.Hooks{Before: before.Before, After: after.After}), &coord.Options{Logger: logger})
	other := coordtest.Open(t, st.Link("b"), nil)
	id := func() int64 {
		s, err := c.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.ID()
	}

	m := coord.NewMutex(c, "/l", &coord.MutexOptions{Data: []byte(secret)})
	h := coordtest.MustLock(t, m)
	coordtest.MustRelease(t, h)
	want()

	link.Partition()
	time.Sleep(1500 * time.Millisecond)
	link.Heal()
	time.Sleep(time.Second)
	want() // the backend reports contact

	h = coordtest.MustLock(t, m)
	link.Expire(h.Session())
	<-h.Done()
	synctest.Wait()
	want("WARN hold lost", "WARN session lost, opening a new one", "INFO session opened")

	after.Arm(1, coordtest.Creates, coordtest.Lose)
	coordtest.MustRelease(t, coordtest.MustLock(t, m))
	want("WARN the reply to a commit was lost, its outcome was determined by reading")

	taken := coordtest.MustLock(t, coord.NewMutex(other, "/l", nil))
	waiting := make(chan *coord.Hold)
	go func() {
		h, err := m.Lock(context.Background())
		if err != nil {
			t.Error(err)
		}
		waiting <- h
	}()
	synctest.Wait()
	link.Expire(id())
	synctest.Wait()
	coordtest.MustRelease(t, taken)
	coordtest.MustRelease(t, <-waiting)
	want("WARN session lost, opening a new one", "INFO session opened", "DEBUG lost the place in the queue of waiters, joining it again at the end")

	if _, err := coord.NewQueue[string](c, "/q", nil).Put(ctx, secret); err != nil {
		t.Fatal(err)
	}
	if _, err := coord.NewQueue[int](c, "/q", nil).TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
		t.Fatal(err)
	}
	want("WARN cannot decode an item, moving it to the dead letters")

	g := coord.NewGroup[string](c, "/g", nil)
	mine, err := g.Join(ctx, "me", secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := coord.NewGroup(other, "/g", &coord.GroupOptions[string]{TakeOver: true}).Join(ctx, "me", secret); err != nil {
		t.Fatal(err)
	}
	<-mine.Done()
	want("WARN a member lost its node, joining again", "ERROR a member cannot join again, its membership has ended")

	deny := func(context.Context, backendtest.Call, error) error { return backend.ErrDenied }
	before.Arm(1, coordtest.Creates, deny)
	for range coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "a", Data: []byte(secret)}).Leadership(ctx) {
	}
	before.Arm(1, func(call backendtest.Call) bool { return call.Path == "/v" }, deny)
	for range coord.NewValue[string](c, "/v", nil).Watch(ctx) {
	}
	want("ERROR campaigning failed, this candidate stops", "ERROR watching failed, closing the channel")

	// A hold that ends with its client is no loss to log.
	coordtest.MustLock(t, m)
	c.Close()
	want()
}

// logbook is a slog.Handler that keeps its messages.
type logbook struct {
	mu    sync.Mutex
	lines []string
	full  bytes.Buffer // with all attributes
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }

func (b *logbook) WithAttrs([]slog.Attr) slog.Handler { return b }

func (b *logbook) WithGroup(string) slog.Handler { return b }

func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, r.Level.String()+" "+strings.TrimPrefix(r.Message, "coord: "))
	b.full.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b.full, " %s=%v", a.Key, a.Value)
		return true
	})
	b.full.WriteByte('\n')
	return nil
}

// take returns the messages since its last call.
func (b *logbook) take() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	b.lines = nil
	return lines
}
