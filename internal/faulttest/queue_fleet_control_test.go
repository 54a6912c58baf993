//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/proc"
)

// fleetControl measures the outages of the service. For each server it has a client that writes
// again and again. An outage is a time in which none of these writes was answered.
type fleetControl struct {
	cancel  context.CancelFunc
	over    sync.WaitGroup
	each    []spans   // by server: the times without an answer
	acked   [][]int64 // by server: the zxids of the writes
	writes  []spans   // by server: from a request to its answer
	outages spans
	gaps    spans // in which this process did not run
}

// leastOutage is the shortest time without an answer that counts.
const leastOutage = 100 * time.Millisecond

func newFleetControl(t *testing.T, e servers) *fleetControl {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	x := &fleetControl{cancel: cancel, each: make([]spans, len(e.Addrs())), acked: make([][]int64, len(e.Addrs())), writes: make([]spans, len(e.Addrs()))}
	for i, addr := range e.Addrs() {
		x.over.Go(func() {
			for from := proc.Now(); ctx.Err() == nil; {
				from = x.write(ctx, i, addr, from)
			}
		})
	}
	x.over.Go(func() {
		watchGaps(ctx, func(l line) { x.gaps = append(x.gaps, window[time.Duration]{l.At - l.Delay, l.At}) })
	})
	t.Cleanup(func() { x.close() })
	return x
}

// write writes on one session until the session or ctx ends. from is the beginning of the
// present time without an answer, and so is the result.
func (x *fleetControl) write(ctx context.Context, i int, addr string, from time.Duration) time.Duration {
	s, err := backendAt([]string{addr}, queueTimeout, 0).Open(ctx)
	if err != nil {
		return from
	}
	defer s.Close()
	op := backend.Create(fmt.Sprint("/control-", i), nil, backend.Persistent)
	for {
		sent := proc.Now()
		res, err := s.Commit(ctx, op)
		switch {
		case errors.Is(err, backend.ErrExists):
			op = backend.SetData(op.Path, nil, backend.AnyVersion)
		case err == nil:
			x.acked[i] = append(x.acked[i], res[0].Stat.Mzxid)
			x.writes[i] = append(x.writes[i], window[time.Duration]{sent, proc.Now()})
			if now := proc.Now(); now-from > leastOutage {
				x.each[i] = append(x.each[i], window[time.Duration]{from, now})
			}
		case ctx.Err() != nil || s.Err() != nil:
			return from
		}
		select {
		case <-time.After(leastOutage / 2):
		case <-ctx.Done():
			return from
		}
		if err == nil {
			from = proc.Now()
		}
	}
}

// pace returns how long a write took in that time: the median of the fastest server, but at most two
// leastOutages, since slower writes count as outages. It is for use after close.
func (x *fleetControl) pace(at window[time.Duration]) (least time.Duration) {
	for _, writes := range x.writes {
		var took []time.Duration
		for _, w := range writes {
			if w.from < at.to && w.to > at.from {
				took = append(took, w.to-w.from)
			}
		}
		if slices.Sort(took); len(took) > 0 {
			if d := took[len(took)/2]; least == 0 || d < least {
				least = d
			}
		}
	}
	return min(least, 2*leastOutage)
}

// close ends the measurement, and returns the times in which no server answered.
func (x *fleetControl) close() spans {
	x.cancel()
	x.over.Wait()
	if x.outages == nil && len(x.each) > 0 {
		x.outages = union(x.each[0])
		for _, s := range x.each[1:] {
			x.outages = x.outages.and(union(s))
		}
	}
	return x.outages
}

// acknowledged returns the zxids of all writes, after close.
func (x *fleetControl) acknowledged() []int64 { return slices.Concat(x.acked...) }

func (x *fleetControl) longest() (d time.Duration) {
	for _, w := range x.outages {
		d = max(d, w.to-w.from)
	}
	return d
}
