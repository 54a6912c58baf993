// Package pace is the control of tests that judge a duration.
//
// On a machine with other work a correct program can exceed any bound. During the judged work, a Meter in the
// same process measures for how long the machine did other work. A test fails only if the duration less that
// time exceeds the bound. If only the duration itself exceeds the bound, the test does not judge it.
package pace

import (
	"crypto/sha256"
	"sync"
	"testing"
	"time"
)

const (
	rest = 10 * time.Millisecond // between two turns of a meter
	turn = 2 * rest              // how long a turn may take, with its rest, on a machine without other work
)

// A Meter takes turns: it sleeps, works for a moment, and makes a step. The time by which a turn exceeds its
// usual duration counts as time in which the machine did other work.
type Meter struct {
	tb    testing.TB
	began time.Time
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	mu   sync.Mutex
	lost time.Duration
	last time.Time // the beginning of the present turn
}

// Start starts a meter, which ends with the test. step, if it is not nil, makes a request that a server of
// the test answers in a few milliseconds, such as the Sync of a session without faults. Then the
// time that the machine withholds from that server counts as well.
func Start(tb testing.TB, step func()) *Meter {
	now := time.Now()
	m := &Meter{tb: tb, began: now, last: now, stop: make(chan struct{}), done: make(chan struct{})}
	go m.run(step)
	tb.Cleanup(m.Stop)
	return m
}

// Stop ends the measurement. A second call does nothing.
func (m *Meter) Stop() {
	m.once.Do(func() { close(m.stop) })
	<-m.done
}

func (m *Meter) run(step func()) {
	defer close(m.done)
	block := make([]byte, 64<<10)
	for {
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-m.stop:
			timer.Stop()
			return
		}
		sha256.Sum256(block)
		if step != nil {
			step()
		}
		m.mu.Lock()
		now := time.Now()
		m.lost += max(0, now.Sub(m.last)-turn)
		m.last = now
		m.mu.Unlock()
	}
}

// Lost returns for how long the machine has done other work since Start.
func (m *Meter) Lost() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return m.lost
	default:
		return m.lost + max(0, time.Since(m.last)-turn)
	}
}

// Within ends the measurement. It judges the time since Start, see Judge.
func (m *Meter) Within(bound time.Duration, what string) {
	m.tb.Helper()
	m.Judge(time.Since(m.began), bound, what)
	m.Stop()
}

// Judge fails the test if d, a duration since Start, exceeds bound even without the lost time. If d exceeds
// bound only with the lost time, Judge logs that.
func (m *Meter) Judge(d, bound time.Duration, what string) {
	m.tb.Helper()
	switch lost := m.Lost(); {
	case d <= bound:
	case d-lost <= bound:
		m.tb.Logf("not judged: %s took %v, bound %v, and the machine did other work for %v", what, d, bound, lost)
	default:
		m.tb.Errorf("%s took %v, bound %v; the machine did other work for %v", what, d, bound, lost)
	}
}
