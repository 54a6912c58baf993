package postgres

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// mostEvents bounds the commits in one reply.
const mostEvents = 1000

// pollEvents asks for the events of a link that does not listen: after each Options.Poll while there are watches, and
// when a reply is ahead of the events.
func (s *session) pollEvents(l *link) {
	defer l.work.Done()
	ticker := time.NewTicker(s.cfg.poll)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.hub.wanted:
		case <-l.ctx.Done():
			return
		}
		tries := 0
		for s.hub.wants() {
			r := newRequest("k_events", int8(s.hub.upTo()), int4(mostEvents))
			r.see = func(r *request) { s.hub.polled(l, r.rows) }
			l.send(r, true)
			select {
			case <-r.done:
			case <-l.ctx.Done():
				return
			}
			var e *pgconn.PgError
			switch {
			case errors.As(r.err, &e) && l.ctx.Err() == nil && transient(e):
				s.pause(l.ctx, tries)
				tries++
				continue
			case r.err != nil:
				l.fail(r.err)
				return
			}
			tries = 0
			if len(r.rows) < mostEvents {
				break
			}
		}
		ticker.Reset(s.cfg.poll) // leaves room for the requests of callers
	}
}

// wants reports whether a watch or a reply needs events.
func (h *hub) wants() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watches > 0 || len(h.early) > 0
}

// upTo returns the position up to which all events have arrived.
func (h *hub) upTo() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.received
}

// polled handles the reply to a request for events. If the database has deleted some of them, all watches fire.
func (h *hub) polled(l *link, rows []row) {
	if h.ends(rows) {
		h.s.end(errRevoked) // before the events of its nodes
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l || h.ended {
		return
	}
	if integer(rows[0][1]) > h.received {
		h.fireAll()
	}
	for _, r := range rows {
		z := integer(r[2])
		if r[2] == nil || z <= h.received {
			continue
		}
		events, _ := elements(r[3])
		for _, e := range events {
			h.event(string(e), z)
		}
		h.received = z
	}
	if len(rows) < mostEvents {
		h.received = max(h.received, integer(rows[0][0]))
	}
	h.release()
}

// ends reports whether events say that the session has ended.
func (h *hub) ends(rows []row) bool {
	for _, r := range rows {
		if events, _ := elements(r[3]); len(events) > 0 && string(events[0]) == h.s.endEvent() {
			return true
		}
	}
	return false
}
