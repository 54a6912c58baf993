//go:build linux

package faulttest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/proc"
)

// A probe is a client without faults. It makes a small commit again and again, to measure the
// time that the servers and the machine need for one, and it reads.
type probe struct {
	c *coord.Client

	mu    sync.Mutex
	times figures[time.Duration]
	since int           // index of the first commit since reset
	began time.Duration // begin of the commit under way, or zero
}

func newProbe(t *testing.T, e servers) *probe {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, err := coord.Open(ctx, backendAt(e.Addrs(), mostTimeout, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const node = "/probe"
	if _, err := s.Commit(ctx, backend.Create(node, nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}
	p := &probe{c: c}
	var wg sync.WaitGroup
	wg.Go(func() {
		every := time.NewTicker(100 * time.Millisecond)
		defer every.Stop()
		for {
			p.set(proc.Now())
			_, err := s.Commit(ctx, backend.SetData(node, nil, backend.AnyVersion))
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, backend.ErrUncertain) { // on a busy machine servers elect another leader
				t.Errorf("the probe's commit: %v", err)
				return
			}
			p.set(0)
			select {
			case <-every.C:
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		c.Close()
		wg.Wait()
	})
	return p
}

func (p *probe) set(began time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if began == 0 {
		p.times.add(proc.Now() - p.began)
	}
	p.began = began
}

// reset begins the interval of slowest.
func (p *probe) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = len(p.times)
}

// slowest returns the longest time of a commit since reset, including the one under way.
func (p *probe) slowest() (d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began != 0 {
		d = proc.Now() - p.began
	}
	if times := p.times[p.since:]; len(times) > 0 {
		d = max(d, times.max())
	}
	return d
}

func (p *probe) all() figures[time.Duration] {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.times)
}

// contenders returns the candidates in the queue at this moment.
func (p *probe) contenders(t *testing.T, election string) []coord.Candidate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, err := p.c.Session(ctx)
	if err == nil {
		err = s.Sync(ctx, "/")
	}
	if err != nil {
		t.Fatal(err)
	}
	list, err := coord.NewElection(p.c, election, nil).Contenders(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
