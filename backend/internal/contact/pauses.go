package contact

import (
	"sync"
	"time"
)

// Pauses notices that the process did not run for more than a third of the timeout of its session: the
// timer that looks at the lease again and again came late. A goroutine that gets no processor for so
// long is no different from that. The zero value is ready for use.
type Pauses struct {
	mu      sync.Mutex
	tell    func(late time.Duration, asleep bool)
	looked  Instant
	wait    time.Duration // until the next look, 0 before the first
	timeout time.Duration
}

// Tell sets the function that is called with how late a look was, which is as long as the pause or
// shorter, by at most an eighth of the timeout. asleep says that only the wall clock shows it: the machine was
// suspended, or that clock was set forward. The function must not block.
func (p *Pauses) Tell(f func(late time.Duration, asleep bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell = f
}

// Next says when the next look is due.
func (p *Pauses) Next(now Instant, wait, timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked, p.wait, p.timeout = now, wait, timeout
}

// Look judges the time since Next was called. It tells a pause once.
func (p *Pauses) Look(now Instant) {
	p.mu.Lock()
	gap, wait, tell := p.looked.To(now), p.wait, p.tell
	long := wait > 0 && gap > p.timeout/3
	asleep := now.Mono-p.looked.Mono <= p.timeout/3
	p.wait = 0
	p.mu.Unlock()
	if long && tell != nil {
		tell(gap-wait, asleep)
	}
}
