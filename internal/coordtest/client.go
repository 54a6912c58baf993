package coordtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/hook"
)

// Locking is a call of Lock under way.
type Locking struct {
	W    *World
	Done chan struct{}
	H    *coord.Hold
	Err  error
}

// Hold waits for the lock.
func (l *Locking) Hold() *coord.Hold {
	l.W.T.Helper()
	select {
	case <-l.Done:
	case <-time.After(Limit):
		l.W.T.Fatal("the lock was never granted")
	}
	if l.Err != nil {
		l.W.T.Fatal(l.Err)
	}
	return l.H
}

// Failed waits for the error of a Lock that must fail.
func (l *Locking) Failed() error {
	l.W.T.Helper()
	select {
	case <-l.Done:
	case <-time.After(Limit):
		l.W.T.Fatal("the call never returned")
	}
	if l.Err == nil {
		l.W.T.Fatal("granted")
	}
	return l.Err
}

// Pending fails the test if the Lock has returned.
func (l *Locking) Pending() {
	l.W.T.Helper()
	select {
	case <-l.Done:
		l.W.T.Fatalf("Lock returned %v, %v while another held the lock", l.H, l.Err)
	default:
	}
}

// Prime makes the directory of a lock known to a client, so that its next request is the one
// that creates a node.
func Prime(t *testing.T, m *coord.Mutex) {
	t.Helper()
	MustRelease(t, MustLock(t, m))
}

// WantErr fails the test unless err matches all targets.
func WantErr(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %v, want one that matches %q", err, target)
		}
	}
}

// Ruled returns b as a backend of a service that has rules of its own for paths: /zookeeper
// belongs to it, and no character is beyond U+FFFF. Calls are not held to the rules, so a client
// that does not ask for them is found.
func Ruled(b backend.Backend) backend.Backend { return ruled{b} }

type ruled struct{ backend.Backend }

type ruledSession struct{ backend.Session }

func (b ruled) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return ruledSession{s}, nil
}

func (s ruledSession) CheckPath(path string) error {
	if path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/") || strings.ContainsFunc(path, func(r rune) bool { return r > 0xffff }) {
		return &backend.Error{Op: "check", Path: path, Err: fmt.Errorf("%w: against a rule of the service", backend.ErrBadPath)}
	}
	return s.Session.CheckPath(path)
}

// Open opens a client that the test closes.
func Open(t *testing.T, b backend.Backend, o *coord.Options) *coord.Client {
	t.Helper()
	return OpenWith(t, b, o, hook.Hooks{})
}

// OpenWith is Open of a client with hooks.
func OpenWith(t *testing.T, b backend.Backend, o *coord.Options, h hook.Hooks) *coord.Client {
	t.Helper()
	c, err := coord.Open(hook.With(t.Context(), watched(t, h)), b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// MustLock waits for the lock.
func MustLock(t *testing.T, m coord.Locker) *coord.Hold {
	t.Helper()
	h, err := m.Lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// MustRelease releases the hold.
func MustRelease(t *testing.T, h *coord.Hold) {
	t.Helper()
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
}

// Children lists the names under path, from a session of its own.
func Children(t *testing.T, b backend.Backend, path string) []string {
	t.Helper()
	s, err := b.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Sync(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	names, _, err := s.Children(context.Background(), path, nil)
	if err != nil && !errors.Is(err, coord.ErrNotFound) {
		t.Fatal(err)
	}
	return names
}
