package costtest

import (
	"maps"
	"sync"
)

// Trips counts the round trips that follow each other, by cause and not by time. A request has the level
// of what its client has received by then, plus one. A reply has the level of its request, and an
// event has that of the latest write that the servers were sent. So the level of a client is at
// least the number of round trips that it waited for. It can be higher: what the client received is not
// always what it waited for.
//
// The key of a client is that of its proxy, which leaves out keep-alives. The zero value counts nothing before
// Reset, and neither does nil. Trips are safe for concurrent use.
type Trips struct {
	mu       sync.Mutex
	round    int
	levels   map[any]int
	requests map[any]map[string]int
	write    int // the highest level of a write
	seen     int // messages in all rounds
}

// Trip identifies a request for its reply.
type Trip struct{ round, level int }

// Reset begins another count. Replies to requests before it count for nothing.
func (t *Trips) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	t.levels, t.requests = make(map[any]int), make(map[any]map[string]int)
	t.write = 0
}

// Sent records a request of a kind before the server gets it. trip is for its reply, and is nil if nothing reads that. write says
// that the request can change the tree.
func (t *Trips) Sent(client any, trip *Trip, kind string, write bool) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if t.round == 0 {
		return
	}
	if t.requests[client] == nil {
		t.requests[client] = make(map[string]int)
	}
	t.requests[client][kind]++
	if trip == nil {
		return
	}
	*trip = Trip{t.round, t.levels[client] + 1}
	if write {
		t.write = max(t.write, trip.level)
	}
}

// Answered records a reply before the client gets it.
func (t *Trips) Answered(client any, trip *Trip) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if trip != nil && trip.round == t.round && t.round > 0 {
		t.levels[client] = max(t.levels[client], trip.level)
	}
}

// Notified records an event before the client gets it.
func (t *Trips) Notified(client any) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen++
	if t.round > 0 {
		t.levels[client] = max(t.levels[client], t.write)
	}
}

// of returns the round trips of a client, and its requests by kind.
func (t *Trips) of(client any) (level int, requests map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.levels[client], maps.Clone(t.requests[client])
}

// all returns the requests of all clients by kind.
func (t *Trips) all() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := make(map[string]int)
	for _, kinds := range t.requests {
		for kind, n := range kinds {
			sum[kind] += n
		}
	}
	return sum
}

// total returns the number of messages so far.
func (t *Trips) total() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}
