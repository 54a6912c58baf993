package contact

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// alive returns a life with a lease of 2 s, and the reasons with which it has ended.
func alive(now func() Instant) (l *Life, reasons *[]error) {
	reasons = new([]error)
	l = NewLife(now, func(why error) { l.Finish(why, func(why error) { *reasons = append(*reasons, why) }) })
	l.Grant(3*time.Second, Lease{From: now(), Length: 2 * time.Second})
	l.Turn(backend.PhaseConnected)
	return l, reasons
}

func TestLife_EndsOnceWhenItsLeaseHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, reasons := alive(Clock())
		var work sync.WaitGroup
		l.Watch(work.Go)
		_, changed := l.Status()
		time.Sleep(time.Second)
		if err := l.Renew(Clock()()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-changed
		if phase, _ := l.Status(); phase != backend.PhaseLost || !errors.Is(l.Err(), ErrUnheard) || time.Since(began) > time.Second+time.Millisecond {
			t.Errorf("phase %v, %v, after %v", phase, l.Err(), time.Since(began))
		}
		l.expire(errors.New("later"))
		l.Turn(backend.PhaseConnected)
		if phase, _ := l.Status(); phase != backend.PhaseLost || !slices.Equal(*reasons, []error{ErrUnheard}) || !errors.Is(l.Enter(), ErrUnheard) || l.Renew(Clock()()) == nil {
			t.Errorf("phase %v, ended by %v", phase, *reasons)
		}
		work.Wait()
	})
}

// An answer that comes late does not renew the lease, and a renewal counts from the moment at which it was sent.
func TestLife_IsRenewedFromTheRequest(t *testing.T) {
	now := Instant{}
	l, reasons := alive(func() Instant { return now })
	sent := Instant{Mono: time.Second, Wall: time.Second}
	now = Instant{Mono: 1900 * time.Millisecond, Wall: 1900 * time.Millisecond}
	if err := l.Renew(sent); err != nil || l.Left() != 1100*time.Millisecond {
		t.Errorf("%v, left %v", err, l.Left())
	}
	if err := l.NoAnswer(backend.ErrClosed, Target{Server: "a"}); fmt.Sprint(err) == fmt.Sprint(backend.ErrClosed) || !errors.Is(err, backend.ErrClosed) {
		t.Errorf("an answer is overdue for a while: %v", err)
	}
	now.Wall += 2 * time.Second // the machine was suspended
	if err := l.Renew(now); !errors.Is(err, ErrUnheard) || l.Ended() != nil {
		t.Errorf("a late answer: %v, %v", err, l.Ended())
	}
	if l.Enter() == nil || len(*reasons) != 1 {
		t.Errorf("a call has begun after the lease; ended by %v", *reasons)
	}
}

func TestLife_ClosesWhenItsCallsAreOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, reasons := alive(Clock())
		for range 2 {
			if err := l.Enter(); err != nil {
				t.Fatal(err)
			}
		}
		if !l.Closing() || l.Closing() || !errors.Is(l.Enter(), backend.ErrClosed) {
			t.Error("a call has begun in a session that closes, or two have closed it")
		}
		drained := make(chan struct{})
		go func() { defer close(drained); l.Drain(t.Context(), time.Second) }()
		l.Leave()
		synctest.Wait()
		select {
		case <-drained:
			t.Error("a call is under way")
		default:
		}
		l.Leave()
		<-drained
		l.expire(ErrUnheard)
		if !slices.Equal(*reasons, []error{backend.ErrClosed}) {
			t.Errorf("ended by %v", *reasons)
		}
	})
}
