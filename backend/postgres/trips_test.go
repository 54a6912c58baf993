package postgres_test

import (
	"maps"
	"sync"
)

// trips counts the round trips that follow each other, by cause and not by time. A request has the level
// of what its client has received by then, plus one. A reply has the level of its request, and a
// notification has that of the latest commit that the server was sent. So the level of a client is at
// least the number of round trips that it waited for. It can be higher: what the client received is not
// always what it waited for.
//
// What keeps a session counts for nothing. The zero value counts nothing before reset, and so does nil.
type trips struct {
	mu       sync.Mutex
	round    int
	levels   map[*line]int
	requests map[*line]map[kind]int
	write    int // the highest level of a commit
	seen     int // messages in all rounds
}

// trip is what trips knows of a request.
type trip struct{ round, level int }

// reset begins another count. Replies to requests before it count for nothing.
func (t *trips) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.levels, t.requests = make(map[*line]int), make(map[*line]map[kind]int)
	t.write = 0
}

// sent records a request before the server gets it.
func (t *trips) sent(l *line, what kind) trip {
	if t == nil || what == keeps {
		return trip{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if t.round == 0 {
		return trip{}
	}
	if t.requests[l] == nil {
		t.requests[l] = make(map[kind]int)
	}
	t.requests[l][what]++
	level := t.levels[l] + 1
	if what == commits {
		t.write = max(t.write, level)
	}
	return trip{t.round, level}
}

// answered records a reply before the client gets it.
func (t *trips) answered(l *line, r *lineRequest) {
	if t == nil || r.kind == keeps {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if r.trip.round == t.round && t.round > 0 {
		t.levels[l] = max(t.levels[l], r.trip.level)
	}
}

// notified records a notification before the client gets it.
func (t *trips) notified(l *line) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if t.round > 0 {
		t.levels[l] = max(t.levels[l], t.write)
	}
}

// of returns the round trips of a client, and its requests.
func (t *trips) of(l *line) (level int, requests map[kind]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.levels[l], maps.Clone(t.requests[l])
}

// all returns the requests of all clients by kind.
func (t *trips) all() map[kind]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := make(map[kind]int)
	for _, kinds := range t.requests {
		for what, n := range kinds {
			sum[what] += n
		}
	}
	return sum
}

// total returns the number of messages so far.
func (t *trips) total() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}
