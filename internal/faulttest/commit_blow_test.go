//go:build linux

package faulttest

import (
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// The ways in which a process of a transaction fails at one of its requests.
const (
	killBefore   = "kill before"    // the process is killed before its request is sent
	killAfter    = "kill after"     // the request was answered, and the process is killed before it reads the reply
	killLate     = "kill and late"  // the process is killed, and its request arrives while others are at work
	expiryBefore = "expiry before"  // the session ends before the request arrives
	expiryAfter  = "expiry after"   // the request was answered, and the session ends before the reply arrives
	lostRequest  = "request lost"   // the connection breaks with it
	lostReply    = "reply lost"     // the connection breaks with it
	noBlow       = "nothing at all" // to count the requests
)

var blows = map[string]zkproxy.DropWhat{
	killBefore:   zkproxy.HoldRequest,
	killAfter:    zkproxy.HoldReply,
	killLate:     zkproxy.HoldRequest,
	expiryBefore: zkproxy.HoldRequest,
	expiryAfter:  zkproxy.HoldReply,
	lostRequest:  zkproxy.DropRequest,
	lostReply:    zkproxy.DropReply,
	noBlow:       zkproxy.DropRequest,
}

// lateBy is the delay of a late request: it arrives while the session of its dead sender is
// still alive.
const lateBy = commitTimeout / 2

// A blow hits an actor at the n-th request that it makes from now on.
type blow struct {
	a      *actor
	how    string
	faults []ensemble.Fault // one at each proxy, of which one can happen
	seen   atomic.Int64     // requests
	kills  bool
	struck bool
	killed time.Time
	late   time.Time // when a held request is forwarded
}

// strike arms a blow.
func strike(a *actor, n int64, how string) *blow {
	b := &blow{a: a, how: how, kills: how == killBefore || how == killAfter || how == killLate}
	match := func(f zkproxy.Frame) bool {
		switch f.Opcode {
		case zkproxy.OpConnect, zkproxy.OpPing, zkproxy.OpClose, zkproxy.OpAuth:
			return false
		}
		return b.seen.Add(1) == n && how != noBlow
	}
	for _, p := range a.proxies {
		b.faults = append(b.faults, p.Drop(match, blows[how]))
	}
	return b
}

// look checks whether the request has come, and then executes the blow. It reports whether it
// has just killed the process.
func (b *blow) look() (killed bool) {
	b.a.t.Helper()
	if b.struck {
		if !b.late.IsZero() && time.Now().After(b.late) {
			b.late = time.Time{}
			b.release()
		}
		return false
	}
	for _, f := range b.faults {
		select {
		case <-f.Hit():
			b.struck = true
		default:
		}
	}
	if !b.struck {
		return false
	}
	b.killed = time.Now()
	switch b.how {
	case killLate:
		b.late = time.Now().Add(lateBy)
		b.a.Kill()
	case killBefore, killAfter:
		b.a.Kill()
		b.cut() // held frames are never forwarded
		b.release()
	case expiryBefore, expiryAfter:
		b.a.e.expire(b.a.t, b.session())
		b.cut()
		b.release()
	}
	return b.kills
}

// session returns the actor's present session.
func (b *blow) session() int64 {
	b.a.t.Helper()
	phase, ok := b.a.said("phase", func(l line) bool { return l.Session != 0 })
	if !ok {
		b.a.t.Fatalf("%s has no session", b.a.name)
	}
	return phase.Session
}

// pending reports whether a part of the blow is still to come.
func (b *blow) pending() bool { return b.struck && !b.late.IsZero() }

func (b *blow) cut() {
	for _, p := range b.a.proxies {
		p.Cut()
	}
}

func (b *blow) release() {
	for _, f := range b.faults {
		f.Cancel()
	}
}
