package contact

import "time"

// Instant is a moment on two clocks: the monotonic clock, which stops while the machine is
// suspended, and the wall clock, which can be set.
type Instant struct {
	Mono time.Duration // since the session was made
	Wall time.Duration // since 1970
}

// To returns the time from i to a later instant, by the clock that shows more.
func (i Instant) To(later Instant) time.Duration {
	return max(later.Mono-i.Mono, later.Wall-i.Wall)
}

// Clock returns a function that reads both clocks.
func Clock() func() Instant {
	start := time.Now()
	return func() Instant {
		now := time.Now()
		return Instant{Mono: now.Sub(start), Wall: time.Duration(now.UnixNano())}
	}
}

// Lease is the time until which a session may consider itself alive. The answer to a renewal
// renews it, from the moment at which the renewal was sent.
type Lease struct {
	From   Instant       // when the latest renewal that was answered was sent
	Length time.Duration // the granted timeout less the margin
}

// Left returns the rest of the lease, zero or less when it has passed.
func (l *Lease) Left(now Instant) time.Duration { return l.Length - l.From.To(now) }

// Renew records an answer to a renewal that was sent at the instant. The caller has checked that
// the lease has not passed.
func (l *Lease) Renew(sent Instant) {
	if sent.Mono > l.From.Mono {
		l.From = sent
	}
}

// Soon returns the time after which to check the lease again, of which so much is left. It is
// shorter than the rest by the monotonic clock, because that clock stops while the machine is
// suspended.
func Soon(left, timeout time.Duration) time.Duration {
	return max(min(left, timeout/8), time.Millisecond)
}
