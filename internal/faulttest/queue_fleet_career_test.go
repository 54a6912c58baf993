//go:build linux

package faulttest

import (
	"slices"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/itemlog"
)

// waits finds the longest waits of ready items for idle consumers. The second result is the
// longest time in which a consumer was silent and its session lived: servers on a busy machine end
// a session late.
func (f *fleet) waits(h *itemlog.Log, outages spans) (waits []wait, silence time.Duration) {
	var items []available
	for _, it := range h.Items {
		a := available{name: it.String(), lane: it.Queue.Name}
		for _, r := range it.Ready {
			a.ready = append(a.ready, window[time.Duration]{f.monotonicOf(r.From), f.monotonicOf(r.To)})
		}
		items = append(items, a)
	}
	hind := hindrances{outages: outages, starved: f.control.gaps, claims: make(map[string][]time.Duration)}
	for lane, all := range h.Taken {
		for _, at := range all {
			hind.claims[lane] = append(hind.claims[lane], f.monotonicOf(at))
		}
		slices.Sort(hind.claims[lane])
	}
	var idlers []idler
	for _, a := range f.all {
		if f.prefetch[a] == "" {
			continue // a producer
		}
		c := f.careerOf(a, h)
		for _, s := range c.sessions {
			hind.silent = append(hind.silent, s.silent)
			hind.absent = append(hind.absent, union(s.silent, c.gaps.and(s.life)))
		}
		for lane, asked := range c.asked {
			idlers = append(idlers, idler{a.name, lane, asked.and(c.connected), c.gaps})
		}
	}
	for _, s := range hind.silent {
		for _, w := range s {
			silence = max(silence, w.to-w.from)
		}
	}
	return longestWaits(idlers, items, hind, waitSeen), silence
}

// waitSeen is the shortest wait that is looked at.
const waitSeen = 20 * time.Millisecond

// career is what became of a consumer.
type career struct {
	asked     map[string]spans // by lane
	connected spans            // it had contact and was not paused
	sessions  []sessionLife
	gaps      spans // it did not run, without being paused
}

// sessionLife is one session of a consumer. The service can end it long after its client has lost
// it and has another one.
type sessionLife struct {
	life   spans
	silent spans // the consumer was dead, paused, without contact or had another session
}

func (f *fleet) careerOf(a *actor, h *itemlog.Log) (c career) {
	end, dead := f.died[a]
	if !dead {
		end = f.finished
	}
	c.asked = make(map[string]spans)
	asking := make(map[string]time.Duration)
	stop := func(lane string, at time.Duration) {
		if from, ok := asking[lane]; ok {
			c.asked[lane] = append(c.asked[lane], window[time.Duration]{from, at})
			delete(asking, lane)
		}
	}
	type start struct {
		session int64
		from    time.Duration
	}
	var contact start
	var sessions []start
	contacts := make(map[int64]spans) // by session
	lose := func(at time.Duration) {
		if contact.session == 0 {
			return
		}
		if ended, ok := h.Ended[contact.session]; ok {
			at = min(at, f.monotonicOf(ended))
		}
		had := window[time.Duration]{contact.from, at}
		c.connected = append(c.connected, had)
		contacts[contact.session] = append(contacts[contact.session], had)
		contact = start{}
	}
	cutOff := slices.Clone(f.cutOff[a])
	for _, l := range a.Reports() {
		switch l.Kind {
		case "asking":
			asking[l.Text] = l.At
		case "took":
			stop(l.Text, l.At)
		case "gap":
			c.gaps = append(c.gaps, window[time.Duration]{l.At - l.Delay, l.At})
		case "phase":
			lose(l.At)
			if l.Text != coord.PhaseConnected.String() {
				continue
			}
			contact = start{l.Session, l.At}
			if n := len(sessions); n == 0 || sessions[n-1].session != l.Session {
				sessions = append(sessions, contact)
			}
		}
	}
	lose(end)
	for lane := range asking {
		stop(lane, end)
	}
	// Connections that were cut off are cut in the end, and the client connects again.
	for i, w := range cutOff {
		at := slices.IndexFunc(c.connected, func(x window[time.Duration]) bool { return x.from >= w.to })
		if at >= 0 {
			cutOff[i].to = c.connected[at].from
		}
	}
	c.connected = union(c.connected)
	for _, s := range sessions {
		to := f.finished
		if ended, ok := h.Ended[s.session]; ok {
			to = min(to, f.monotonicOf(ended))
		}
		life := spans{{s.from, to}}
		c.sessions = append(c.sessions, sessionLife{life, union(life.minus(union(contacts[s.session])), union(f.stopped[a], cutOff).and(life))})
	}
	c.connected = c.connected.minus(union(cutOff, f.stopped[a]))
	c.gaps = union(c.gaps).minus(union(f.stopped[a]))
	for lane := range c.asked {
		c.asked[lane] = union(c.asked[lane])
	}
	return c
}
