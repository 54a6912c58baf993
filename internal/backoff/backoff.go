// Package backoff has the pauses between attempts.
package backoff

import (
	"cmp"
	"context"
	"time"

	"github.com/go-coord/coord/backend"
)

const (
	first = 10 * time.Millisecond
	// Most is the longest pause, unless UpTo sets another one.
	Most = time.Second
)

// Source gives random numbers, see core.Client.Random.
type Source interface{ Random(what string) uint64 }

// Pauses generates growing, jittered pauses between attempts that fail repeatedly for a
// reason that no event signals: a permission that an operator revoked, or a server that
// drops the connection at each attempt of one request. The first repetition is
// immediate, since a single lost reply is the usual case.
type Pauses struct {
	random Source
	most   time.Duration // the longest; zero means Most
	n      int
}

// New returns pauses whose jitter comes from a source.
func New(random Source) Pauses { return Pauses{random: random} }

// UpTo bounds the pauses.
func (p Pauses) UpTo(most time.Duration) Pauses {
	p.most = most
	return p
}

// From begins after n failures.
func (p Pauses) From(n int) Pauses {
	p.n = n
	return p
}

// SkipFirst leaves out the first pause, which is none.
func (p *Pauses) SkipFirst() { p.n = max(p.n, 1) }

// Reset begins again with the first pause.
func (p *Pauses) Reset() { p.n = 0 }

// Count returns how many pauses there were since the latest reset.
func (p *Pauses) Count() int { return p.n }

// Wait makes the next pause. It reports false if one of the channels is ready first. A nil channel is never ready.
func (p *Pauses) Wait(a, b <-chan struct{}) bool { return p.WaitOr(a, b, nil) }

// WaitOr is Wait with a third channel.
func (p *Pauses) WaitOr(a, b, c <-chan struct{}) bool {
	d := time.Duration(0)
	if p.n > 0 {
		d = min(first<<min(p.n-1, 16), cmp.Or(p.most, Most))
		d = d/2 + time.Duration(p.random.Random("pause")%uint64(d/2))
	}
	p.n++
	if d == 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-a:
	case <-b:
	case <-c:
	}
	return false
}

// Sleep waits for d or the end of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}
