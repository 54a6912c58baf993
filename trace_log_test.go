package coord_test

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
)

// logbook is a slog.Handler that keeps what it is told.
type logbook struct {
	mu    sync.Mutex
	lines []string
	full  bytes.Buffer // with all attributes
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logbook) WithGroup(string) slog.Handler            { return b }
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

// take returns what was told since the last time.
func (b *logbook) take() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	b.lines = nil
	return lines
}

const secret = "xyzzy"

// logged plays what an operator should hear of, with data that nobody should.
func logged(t *testing.T, logger *slog.Logger, want func(lines ...string)) {
	ctx := t.Context()
	st := memory.New(&memory.Options{SessionTimeout: 3 * time.Second})
	var after, before nth
	link := st.Link("a")
	c := open(t, backendtest.Intercept(link, backendtest.Hooks{Before: before.before, After: after.after}), &coord.Options{Logger: logger})
	other := open(t, st.Link("b"), nil)
	id := func() int64 {
		s, err := c.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.ID()
	}

	m := coord.NewMutex(c, "/l", &coord.MutexOptions{Data: []byte(secret)})
	h := mustLock(t, m)
	mustRelease(t, h)
	want()

	link.Partition()
	time.Sleep(1500 * time.Millisecond)
	link.Heal()
	time.Sleep(time.Second)
	want() // contact is the backend's to tell of

	h = mustLock(t, m)
	link.Expire(h.Session())
	<-h.Done()
	synctest.Wait()
	want("WARN hold lost", "WARN session lost", "INFO session opened")

	after.arm(1, creates, lose)
	mustRelease(t, mustLock(t, m))
	want("WARN a reply was lost, the outcome found out")

	taken := mustLock(t, coord.NewMutex(other, "/l", nil))
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
	mustRelease(t, taken)
	mustRelease(t, <-waiting)
	want("WARN session lost", "INFO session opened", "DEBUG back to the tail of the line")

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
	if _, err := coord.NewGroup(other, "/g", &coord.GroupOptions[string]{Replace: true}).Join(ctx, "me", secret); err != nil {
		t.Fatal(err)
	}
	<-mine.Done()
	want("WARN a member has lost its node and joins again", "ERROR a member cannot join again")

	deny := func(context.Context, backendtest.Call, error) error { return backend.ErrDenied }
	before.arm(1, creates, deny)
	for range coord.NewElection(c, "/e", &coord.ElectionOptions{ID: "a", Data: []byte(secret)}).Leadership(ctx) {
	}
	before.arm(1, func(call backendtest.Call) bool { return call.Path == "/v" }, deny)
	for range coord.NewValue[string](c, "/v", nil).Watch(ctx) {
	}
	want("ERROR cannot campaign any more", "ERROR cannot follow any more")

	// A hold that ends with its client is no loss that anybody must hear of.
	mustLock(t, m)
	c.Close()
	want()
}

func TestTheLogTellsWhatAnOperatorShouldKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := new(logbook)
		logged(t, slog.New(book), func(lines ...string) {
			t.Helper()
			got := book.take()
			slices.Sort(got) // several goroutines tell of one lost session
			slices.Sort(lines)
			if !slices.Equal(got, lines) {
				t.Errorf("logged %q, want %q", got, lines)
			}
		})
		if text := book.full.String(); strings.Contains(text, secret) {
			t.Errorf("data of a node in the log:\n%s", text)
		}
		// All name what they are about.
		for line := range strings.Lines(book.full.String()) {
			if !regexp.MustCompile(` (path|session)=\S`).MatchString(line) {
				t.Errorf("about what? %s", line)
			}
		}
	})
}

func TestNothingIsLoggedWithoutALogger(t *testing.T) {
	book := new(logbook)
	// Both packages: SetDefault leads what package log is told to the handler too.
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
