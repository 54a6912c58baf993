package backend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
)

func missing(path string) error {
	return &backend.Error{Op: "get", Path: path, Err: backend.ErrNotFound}
}

func TestAnErrorReadsAsOperationPathAndReason(t *testing.T) {
	for _, tt := range []struct {
		err  *backend.Error
		want string
	}{
		{&backend.Error{Op: "get", Path: "/a", Err: backend.ErrNotFound}, "coord: get /a: node not found"},
		{&backend.Error{Op: "open", Err: backend.ErrDenied}, "coord: open: permission denied"},
		{&backend.Error{Op: "close"}, "coord: close"},
		{&backend.Error{Op: "get", Path: "a\x1b[2J\u202e", Err: backend.ErrBadPath}, `coord: get "a\x1b[2J\u202e": bad path`},
		{&backend.Error{Op: "commit", Index: -1, Err: backend.Uncertain(context.Canceled)}, "coord: commit: outcome uncertain: context canceled"},
		{&backend.Error{Op: "lock", Path: "/l", Err: missing("/l/a")}, "coord: lock /l: get /l/a: node not found"},
		{&backend.Error{Op: "lock", Path: "/l", Err: missing("/l")}, "coord: lock /l: get: node not found"},
		{&backend.Error{Op: "lock", Path: "/l", Err: missing("")}, "coord: lock /l: get: node not found"},
		{&backend.Error{Op: "lock", Err: missing("/l")}, "coord: lock: get /l: node not found"},
		{&backend.Error{Op: "serve", Path: "/t", Err: fmt.Errorf("in doubt: %w", missing("/t"))}, "coord: serve /t: in doubt: get: node not found"},
		{&backend.Error{Op: "set", Path: "/v", Err: backend.Uncertain(missing("/w"))}, "coord: set /v: outcome uncertain: get /w: node not found"},
		{&backend.Error{Op: "a", Path: "/1", Err: &backend.Error{Op: "b", Path: "/2", Err: missing("/1")}}, "coord: a /1: b /2: get /1: node not found"},
		{&backend.Error{Op: "a", Path: "/1", Err: &backend.Error{Op: "b", Path: "/1", Err: missing("/1")}}, "coord: a /1: b: get: node not found"},
		{&backend.Error{Op: "release", Path: "/l", Err: errors.New("coord: hold /l/a lost")}, "coord: release /l: hold /l/a lost"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestAnErrorCutsALongPath(t *testing.T) {
	for _, path := range []string{"/" + strings.Repeat("x", 100_000), strings.Repeat("\x00", 100_000)} {
		got := (&backend.Error{Op: "get", Path: path, Err: backend.ErrBadPath}).Error()
		if len(got) > 2000 || !strings.Contains(got, "bad path") {
			t.Errorf("%d bytes: %.300q", len(got), got)
		}
	}
}

func TestUncertainMatchesItselfAndItsCause(t *testing.T) {
	if got := backend.Uncertain(nil); !errors.Is(got, backend.ErrUncertain) {
		t.Errorf("got %v", got)
	}
	if got := backend.Uncertain(backend.ErrUncertain); got.Error() != backend.ErrUncertain.Error() {
		t.Errorf("got %v", got)
	}
	err := error(&backend.Error{Op: "commit", Index: -1, Err: backend.Uncertain(backend.ErrSessionLost)})
	for _, target := range []error{backend.ErrUncertain, backend.ErrSessionLost} {
		if !errors.Is(err, target) {
			t.Errorf("%v does not match %v", err, target)
		}
	}
	if errors.Is(err, backend.ErrClosed) || errors.Is(backend.ErrUncertain, backend.ErrSessionLost) {
		t.Error("an error matches a target that it must not match")
	}
}

func TestContextErrorMatchesTheErrorAndTheCause(t *testing.T) {
	if err := backend.ContextError(t.Context()); err != nil {
		t.Fatalf("a context that has not ended has error %v", err)
	}
	cause := errors.New("the reason")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	late, stop := context.WithDeadlineCause(t.Context(), time.Time{}, cause)
	defer stop()
	for want, ctx := range map[error]context.Context{context.Canceled: canceled, context.DeadlineExceeded: late} {
		err := backend.ContextError(ctx)
		if !errors.Is(err, want) || !errors.Is(err, cause) {
			t.Errorf("got %v, want one that matches %v and the cause", err, want)
		}
	}
	plain, cancelPlain := context.WithCancel(t.Context())
	cancelPlain()
	if err := backend.ContextError(plain); err != context.Canceled {
		t.Errorf("got %v, want context.Canceled itself", err)
	}
}

func TestALongPathIsCutBetweenCharacters(t *testing.T) {
	for _, p := range []string{"/" + strings.Repeat("é", 300), "/x" + strings.Repeat("é", 300), "/" + strings.Repeat("\u65e5", 300)} {
		if got := (&backend.Error{Op: "get", Path: p, Err: backend.ErrNotFound}).Error(); !utf8.ValidString(got) || len(got) > 320 {
			t.Errorf("%q", got)
		}
	}
}

// The cause of an ended context can be the error of any other call.
func TestIsUncertainDoesNotLookAtTheCauseOfAContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("another call: %w", backend.ErrUncertain))
	ended := backend.ContextError(ctx)
	if !errors.Is(ended, backend.ErrUncertain) {
		t.Fatalf("%v does not match its cause", ended)
	}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{backend.ErrSessionLost, false},
		{ended, false},
		{&backend.Error{Op: "commit", Index: -1, Err: ended}, false},
		{fmt.Errorf("%w: %w", backend.ErrUnsupported, ended), false},
		{backend.ErrUncertain, true},
		{backend.Uncertain(ended), true},
		{&backend.Error{Op: "commit", Index: -1, Err: backend.Uncertain(backend.ErrSessionLost)}, true},
		{errors.Join(backend.ErrClosed, backend.ErrUncertain), true},
		{ofAnotherBackend{}, true},
		{fmt.Errorf("commit: %w", ofAnotherBackend{}), true},
	} {
		if got := backend.IsUncertain(test.err); got != test.want {
			t.Errorf("%v: %t, want %t", test.err, got, test.want)
		}
	}
}

// ofAnotherBackend is an error that only says that it matches ErrUncertain.
type ofAnotherBackend struct{}

func (ofAnotherBackend) Error() string        { return "no answer" }
func (ofAnotherBackend) Is(target error) bool { return target == backend.ErrUncertain }
