package etcd

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// A look that comes late gives half of the time again, and no other look does.
func TestSupervise_ADeadlineAfterAPause(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name  string
		looks []time.Duration // when
		left  []time.Duration // until the next look; 0: over
	}{
		{"in time", []time.Duration{2 * s, 4 * s, 6 * s, 8 * s}, []time.Duration{2 * s, 2 * s, 2 * s, 0}},
		{"a little late", []time.Duration{3 * s, 6 * s, 9 * s}, []time.Duration{2 * s, 2 * s, 0}},
		{"after the end", []time.Duration{2 * s, 20 * s, 22 * s, 24 * s}, []time.Duration{2 * s, 2 * s, 2 * s, 0}},
		{"before the end", []time.Duration{2 * s, 7500 * time.Millisecond, 9500 * time.Millisecond, 11500 * time.Millisecond}, []time.Duration{2 * s, 2 * s, 2 * s, 0}},
		{"early", []time.Duration{5 * s, 6 * s, 8 * s, 9 * s}, []time.Duration{2 * s, 2 * s, s, 0}},
		{"twice", []time.Duration{20 * s, 40 * s, 42 * s, 44 * s}, []time.Duration{2 * s, 2 * s, 2 * s, 0}},
		{"nearly over", []time.Duration{2 * s, 4 * s, 6 * s, 8*s - 1}, []time.Duration{2 * s, 2 * s, 2 * s, time.Millisecond}},
	} {
		for clock, at := range map[string]func(time.Duration) contact.Instant{
			"both clocks":    func(d time.Duration) contact.Instant { return contact.Instant{Mono: d, Wall: 1000*s + d} },
			"the wall clock": func(d time.Duration) contact.Instant { return contact.Instant{Wall: 1000*s + d} },
		} {
			d := newDeadline(at(0), 8*s)
			for i, look := range test.looks {
				if left := d.look(at(look)); left != test.left[i] {
					t.Errorf("%s, %s: look %d, after %v: %v, want %v", test.name, clock, i, look, left, test.left[i])
				}
			}
		}
	}
}

// The process is paused while a request has no answer yet. The link breaks if there is none either when the process
// has gone on for a while.
func TestSupervise_ARequestDuringAPause(t *testing.T) {
	for _, test := range []struct {
		name   string
		paused time.Duration
		breaks time.Duration // of the time in which the process runs
	}{
		{"no pause", 0, 4 * time.Second},
		{"longer than the limit", time.Minute, 3 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			clock, begun := contact.Clock(), time.Now()
			var paused atomic.Int64
			mute := make(chan requestKind, 1)
			l := &link{patience: 4 * time.Second, hung: func(k requestKind) { mute <- k }, raw: nowhere{}}
			l.now = func() contact.Instant {
				now := clock()
				now.Mono, now.Wall = now.Mono+time.Duration(paused.Load()), now.Wall+time.Duration(paused.Load())
				return now
			}
			l.ctx, l.cancel = context.WithCancelCause(t.Context())
			answered := l.await(writeRequest)
			paused.Store(int64(test.paused))
			if kind := <-mute; kind != writeRequest || !errors.Is(l.reason(), errMute) {
				t.Errorf("%s: %d, %v", test.name, kind, l.reason())
			}
			if took := time.Since(begun); took != test.breaks {
				t.Errorf("%s: the link breaks after %v, want %v", test.name, took, test.breaks)
			}
			answered()
		})
	}
}

// The process is paused while the proof of the watch stream, or the making of a watcher, has no answer yet.
func TestSupervise_AStreamDuringAPause(t *testing.T) {
	const lease = 12 * time.Second
	for _, what := range []string{"a proof", "a watcher"} {
		now := contact.Instant{Wall: 1000 * time.Second}
		st := newStage(t, true)
		st.h.s.Grant(0, contact.Lease{Length: lease})
		st.h.s.now = func() contact.Instant { return now }
		st.h.pulse, st.h.looked = pulse{proved: now}, now
		w := st.h.watcherLocked(watchKey{nodeRange, "p//n"})
		w.users[&interest{}] = struct{}{}
		if what == "a proof" {
			st.created(w.id, 2)
			st.progress(2)
		}
		look := func(after time.Duration) error {
			now.Mono, now.Wall = now.Mono+after, now.Wall+after
			_, err := st.h.prove(st.l)
			return err
		}
		for range 3 { // the third one asks
			if err := look(lease / pulses); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if !st.h.pulse.asking {
			t.Fatal("this tests nothing")
		}
		if err := look(lease); err != nil {
			t.Errorf("%s: a pause counts as silence: %v", what, err)
		}
		var err error
		n := 0
		for ; err == nil && n < 100; n++ {
			if what == "a watcher" && n == 0 {
				st.h.alive(1 << 40) // the stream is proved otherwise
			}
			err = look(lease / pulses)
		}
		if !errors.Is(err, errNoProgress) || n > 5 {
			t.Errorf("%s: %v after %d looks", what, err, n)
		}
	}
}

// nowhere is a connection that is closed.
type nowhere struct{ net.Conn }

func (nowhere) Close() error { return nil }

// Two things break a link at the same time. Only the one that is its reason counts as the first.
func TestSupervise_ALinkBreaksForOneReason(t *testing.T) {
	other, second := errors.New("another reason"), false
	l := &link{raw: nowhere{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	l.ctx, l.cancel = ctx, func(err error) {
		cancel(err)
		if errors.Is(err, errMute) && l.mu.TryLock() { // the other one can come in between
			l.mu.Unlock()
			second = l.fail(other)
		}
	}
	if first := l.fail(errMute); !first || second || !errors.Is(l.reason(), errMute) {
		t.Errorf("first: %t, %t, the reason: %v", first, second, l.reason())
	}
}

// A server refuses the watch of the session key. That says nothing of a user whose token is missing or old.
func TestSupervise_WhichRefusalOfAWatchIsOneOfTheUser(t *testing.T) {
	noUser, noPermission := rpctypes.ErrGRPCUserEmpty, rpctypes.ErrGRPCPermissionDenied
	for _, test := range []struct {
		user  string
		tells bool
		why   error
		want  bool
	}{
		{"", true, noUser, true},
		{"", false, noUser, true},
		{"", false, noPermission, true},
		{"alice", true, noUser, false},
		{"alice", true, noPermission, true},
		{"alice", false, noPermission, false},
		{"alice", true, rpctypes.ErrGRPCInvalidAuthToken, false},
	} {
		h := newHub(&session{cfg: &config{user: test.user}})
		h.link = &link{tells: test.tells}
		h.own = &watcher{}
		h.creating = []*watcher{h.own}
		err := h.refuse(&pb.WatchResponse{Created: true, Canceled: true, CancelReason: test.why.Error()})
		if err == nil || errors.Is(err, backend.ErrDenied) != test.want {
			t.Errorf("user %q, tells %t, %v: %v", test.user, test.tells, test.why, err)
		}
	}
}

// A session ends while an earlier link still answers requests. When its loss is known, that link sends nothing more.
func TestSupervise_TheEndOfASessionEndsAllItsLinks(t *testing.T) {
	s := &session{cfg: &config{}, relinked: make(chan struct{}), servers: contact.NewServers([]string{"a"}, nil, time.Second)}
	s.Life, s.hub = contact.NewLife(contact.Clock(), s.end), newHub(s)
	var links []*link
	for range 3 {
		l := &link{raw: nowhere{}}
		l.ctx, l.cancel = context.WithCancelCause(t.Context())
		links = append(links, l)
	}
	s.link, s.ending = links[0], map[*link]struct{}{links[1]: {}, links[2]: {}}
	s.end(contact.ErrUnheard)
	for i, l := range links {
		if !errors.Is(l.reason(), backend.ErrSessionLost) {
			t.Errorf("link %d: %v", i, l.reason())
		}
	}
}

// The session has another link by now, or is over. The goroutine of the earlier link asks for no proof of the
// stream, and misses none.
func TestSupervise_AnEarlierLinkNeedsNoProof(t *testing.T) {
	const lease = 12 * time.Second
	for name, change := range map[string]func(h *hub){
		"another link": func(h *hub) { h.link = &link{ordered: true, wake: make(chan struct{}, 1)} },
		"the end":      func(h *hub) { h.ended = true },
	} {
		now := contact.Instant{Wall: 1000 * time.Second}
		st := newStage(t, true)
		st.h.s.Grant(0, contact.Lease{Length: lease})
		st.h.s.now = func() contact.Instant { return now }
		st.h.pulse, st.h.looked = pulse{proved: now}, now
		st.h.watcherLocked(watchKey{nodeRange, "p//n"}).users[&interest{}] = struct{}{}
		change(st.h)
		st.requests()
		for range 2 * pulses {
			now.Mono, now.Wall = now.Mono+lease/pulses, now.Wall+lease/pulses
			if _, err := st.h.prove(st.l); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if _, progress := st.requests(); progress != 0 || st.h.pulse.asking {
			t.Errorf("%s: %d replies were requested", name, progress)
		}
	}
}
