package oteltrace

import (
	"context"
	"sync"

	coordtrace "github.com/go-coord/coord/trace"
	"go.opentelemetry.io/otel/metric"
)

// acquisitions are those that an up-down counter counts at present, by their ID, with the
// attributes under which each was counted. So each is subtracted once, and only if it was added,
// also if events are missing.
type acquisitions struct {
	mu  sync.Mutex
	set map[uint64]metric.MeasurementOption
}

// add counts an acquisition, unless it is counted: a call that loses its place in the queue begins
// to wait again.
func (s *acquisitions) add(ctx context.Context, c metric.Int64UpDownCounter, id uint64, with metric.MeasurementOption) {
	s.mu.Lock()
	_, counted := s.set[id]
	if !counted {
		s.set[id] = with
	}
	s.mu.Unlock()
	if !counted {
		c.Add(ctx, 1, with)
	}
}

func (s *acquisitions) remove(ctx context.Context, c metric.Int64UpDownCounter, id uint64) {
	s.mu.Lock()
	with, counted := s.set[id]
	delete(s.set, id)
	s.mu.Unlock()
	if counted {
		c.Add(ctx, -1, with)
	}
}

func (s *acquisitions) removeAll(ctx context.Context, c metric.Int64UpDownCounter) {
	s.mu.Lock()
	set := s.set
	s.set = make(map[uint64]metric.MeasurementOption)
	s.mu.Unlock()
	for _, with := range set {
		c.Add(ctx, -1, with)
	}
}

// sessions are the phases of the sessions of the clients, by the id of the session.
type sessions struct {
	mu     sync.Mutex
	phases map[int64]string
}

// changed counts the clients in the phase of e, and in the phase before it. A session that
// follows a lost one takes the place of one that is lost: which client it belongs to makes no
// difference to the numbers. So the place of a lost session can be gone when an event reports that
// its client could not open the next one, or was closed. That client then takes the place that is left.
func (s *sessions) changed(ctx context.Context, c metric.Int64UpDownCounter, e coordtrace.StateChanged) {
	s.mu.Lock()
	before, known := s.phases[e.Session]
	if !known && (e.Again || e.Phase == "lost" || e.Phase == "closed") {
		for id, phase := range s.phases {
			if phase == "lost" {
				before = phase
				delete(s.phases, id)
				break
			}
		}
	}
	if e.Phase == "closed" {
		delete(s.phases, e.Session)
	} else {
		s.phases[e.Session] = e.Phase
	}
	s.mu.Unlock()
	if before == e.Phase {
		return
	}
	if before != "" {
		c.Add(ctx, -1, metric.WithAttributes(keyPhase.String(before)))
	}
	if e.Phase != "closed" {
		c.Add(ctx, 1, metric.WithAttributes(keyPhase.String(e.Phase)))
	}
}

// shards are the members that divide work among them, with the totals that each has reported last.
type shards struct {
	mu      sync.Mutex
	members map[shardMember]shardTotals
}

type shardMember struct{ path, member string }

type shardTotals struct{ assigned, owned, moving int }

// changed counts the totals of a member in place of those before.
func (s *shards) changed(ctx context.Context, m *metrics, e coordtrace.ShardsOwned, with metric.MeasurementOption) {
	key := shardMember{e.Path, e.Member}
	now := shardTotals{e.Ought, e.Owned, e.Moving}
	s.mu.Lock()
	before := s.members[key]
	if now == (shardTotals{}) {
		delete(s.members, key)
	} else {
		s.members[key] = now
	}
	s.mu.Unlock()
	m.assigned.Add(ctx, int64(now.assigned-before.assigned), with)
	m.owned.Add(ctx, int64(now.owned-before.owned), with)
	m.moving.Add(ctx, int64(now.moving-before.moving), with)
}

// undone are the sites that carry decisions out, with the numbers that each has reported last.
type undone struct {
	mu    sync.Mutex
	sites map[siteKey]siteTotals
}

type siteKey struct{ path, site string }

type siteTotals struct{ undone, failing int }

// changed counts the numbers of a site in place of those before.
func (s *undone) changed(ctx context.Context, m *metrics, e coordtrace.DecisionsUndone, with metric.MeasurementOption) {
	key := siteKey{e.Path, e.Site}
	now := siteTotals{e.Undone, e.Failing}
	s.mu.Lock()
	before := s.sites[key]
	if now == (siteTotals{}) {
		delete(s.sites, key)
	} else {
		s.sites[key] = now
	}
	s.mu.Unlock()
	m.undone.Add(ctx, int64(now.undone-before.undone), with)
	m.failing.Add(ctx, int64(now.failing-before.failing), with)
}
