package zookeeper

import "time"

// instant is a moment by two clocks: the monotonic one, which stands still while
// the machine is suspended, and the wall clock, which can be set.
type instant struct {
	mono time.Duration // since the session was made
	wall time.Duration // since 1970
}

// to returns the time from i to a later instant, by the clock that says more.
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

// lease is how long a session may count itself alive.
type lease struct {
	from   instant       // when the latest request that was answered was sent
	length time.Duration // the negotiated timeout less the margin
}

// left is what is left of the lease, zero or less when it has passed.
func (l *lease) left(now instant) time.Duration { return l.length - l.from.to(now) }

// renew counts an answer to a request that was sent at the instant.
func (l *lease) renew(sent instant) {
	if sent.mono > l.from.mono {
		l.from = sent
	}
}
