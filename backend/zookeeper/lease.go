package zookeeper

import "time"

// instant is a moment on two clocks: the monotonic clock, which stops while the machine is
// suspended, and the wall clock, which can be set.
type instant struct {
	mono time.Duration // since the session was made
	wall time.Duration // since 1970
}

// to returns the time from i to a later instant, by the clock that shows more.
func (i instant) to(later instant) time.Duration {
	return max(later.mono-i.mono, later.wall-i.wall)
}

// clock returns a function that reads both clocks.
func clock() func() instant {
	start := time.Now()
	return func() instant {
		now := time.Now()
		return instant{mono: now.Sub(start), wall: time.Duration(now.UnixNano())}
	}
}

// lease is the time until which a session may consider itself alive.
type lease struct {
	from   instant       // when the latest request that was answered was sent
	length time.Duration // the negotiated timeout less the margin
}

// left returns the rest of the lease, zero or less when it has passed.
func (l *lease) left(now instant) time.Duration { return l.length - l.from.to(now) }

// renew records an answer to a request that was sent at the instant.
func (l *lease) renew(sent instant) {
	if sent.mono > l.from.mono {
		l.from = sent
	}
}
