package coordtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
)

// Expiry is the control for bounds that begin when a process is killed or cut off. It has a session
// with the timeout of that process, which becomes silent at the same time, and an observer of the end
// of that session. Servers on a busy machine can be late: a leader that loses its followers ends no
// session, and the next leader gives all sessions their whole timeout again.
type Expiry struct {
	Pace *pace.Meter // since Begin, of the machine and of the observer's session

	t      *testing.T
	mute   func(on bool)
	silent backend.Session
	see    backend.Session
	path   string
	began  time.Time
	after  time.Duration // the session timeout
	end    sync.Once
}

// NewExpiry opens the session, with the backend silent, over connections on which mute loses
// everything, and the observer.
func NewExpiry(t *testing.T, silent, observer backend.Backend, timeout time.Duration, mute func(on bool)) *Expiry {
	t.Helper()
	x := &Expiry{t: t, mute: mute, after: timeout}
	for _, s := range []struct {
		at *backend.Session
		b  backend.Backend
	}{{&x.silent, silent}, {&x.see, observer}} {
		session, err := s.b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close() })
		*s.at = session
	}
	res, err := x.silent.Commit(t.Context(), backend.Create("/expiry-", nil, backend.EphemeralSequential))
	if err != nil {
		t.Fatal(err)
	}
	x.path = res[0].Path
	t.Cleanup(x.End)
	return x
}

// Begin makes the session silent.
func (x *Expiry) Begin() {
	x.began = time.Now()
	x.mute(true)
	x.Pace = pace.Start(x.t, func() { _ = x.see.Sync(context.Background(), "/") })
}

// Bound returns how long after Begin the servers can end a session at the latest.
func (x *Expiry) Bound() time.Duration {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), Limit)
	defer cancel()
	for {
		w := backend.NewWatch()
		_, err := x.see.Exists(ctx, x.path, w)
		if errors.Is(err, backend.ErrNotFound) {
			w.Stop()
			return max(x.after, time.Since(x.began))
		}
		if err != nil {
			x.t.Fatal(err)
		}
		select {
		case <-w.Fired():
		case <-ctx.Done():
			x.t.Fatalf("the session of %s has not ended", x.path)
		}
	}
}

// Judge fails the test if d, since Begin, is more than two seconds longer than the servers took to end
// the session, without the time that the machine lost. It ends the control.
func (x *Expiry) Judge(d time.Duration, what string) {
	x.t.Helper()
	x.Pace.Judge(d, x.Bound()+2*time.Second, what)
	x.End()
}

// End ends the control.
func (x *Expiry) End() {
	x.end.Do(func() {
		if x.Pace != nil {
			x.Pace.Stop()
		}
		x.mute(false) // or Close would wait for contact
		x.silent.Close()
		x.see.Close()
	})
}
