package zookeeper

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	firstPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
	leastSpell = time.Second
)

// hosts is the list of servers of one session, in its own order. It is the HostProvider of
// the zk client, which asks it for the next server to dial. It does not resolve names; the
// dialer does, for each connection.
//
// After contact broke, each server is tried once without a pause. Each further round begins
// with a pause, which grows and is jittered. The dialer makes the pauses, since those of the
// zk client last a second at most.
//
// Contact that breaks again before it has lasted for a spell counts as a round itself, except
// the first time: a server can answer one request and drop the connection for the next, on
// each connection.
type hosts struct {
	most  time.Duration // the longest pause
	spell time.Duration // how long contact must last to count as good

	mu    sync.Mutex
	list  []string
	next  int
	tried int // servers handed out since the last answer
	short int // contacts in a row that have not lasted, the present one included

	mute map[string]bool // the addresses that accepted a connection and have not answered on it
}

func newHosts(servers []string, timeout time.Duration) *hosts {
	h := &hosts{
		list:  append([]string(nil), servers...),
		most:  min(max(timeout/10, firstPause), mostPause),
		spell: max(timeout/10, leastSpell),
		mute:  make(map[string]bool),
	}
	rand.Shuffle(len(h.list), func(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] })
	return h
}

// Init is part of zk.HostProvider.
func (h *hosts) Init([]string) error { return nil }

// Len is part of zk.HostProvider.
func (h *hosts) Len() int { return len(h.list) }

// Next is part of zk.HostProvider. It never reports that all servers have been tried: the zk
// client would sleep for a second and drop its queue.
func (h *hosts) Next() (server string, retryStart bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.list[h.next]
	h.next = (h.next + 1) % len(h.list)
	h.tried++
	return server, false
}

// Connected is part of zk.HostProvider. It does nothing: a server that welcomes a session and
// drops it at once is not good.
func (h *hosts) Connected() {}

// accepted records that there is a connection to an address.
func (h *hosts) accepted(address string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mute[address] = true
}

// answered records that the first request on a connection to an address was answered.
func (h *hosts) answered(address string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.mute, address)
	h.tried = 0
	h.short++
}

// isMute reports whether an address has to be skipped.
func (h *hosts) isMute(address string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mute[address]
}

// forgetMute makes all addresses eligible again.
func (h *hosts) forgetMute() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.mute)
}

// lasted records that a server still answers on the same connection, one spell after its
// first answer.
func (h *hosts) lasted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.short = 0
}

// pause returns the time to wait before dialling the server that Next returned last.
func (h *hosts) pause() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	round := max(h.short-1, 0) + (h.tried-1)/len(h.list)
	if round <= 0 || (h.tried-1)%len(h.list) != 0 {
		return 0
	}
	return growing(firstPause, h.most, round)
}
