package contact

import (
	"math/rand/v2"
	"sync"
	"time"
)

// The pauses before connections.
const (
	FirstPause = 50 * time.Millisecond
	MostPause  = 2 * time.Second

	leastSpell = time.Second
)

// Growing returns the pause before the next attempt after so many have failed. It doubles
// each time up to most, with jitter.
func Growing(first, most time.Duration, times int) time.Duration {
	d := most
	if times <= 8 {
		d = min(first<<(times-1), most)
	}
	return d/2 + rand.N(d/2)
}

// Servers is the list of servers of one session, in its own order.
//
// After contact broke, each server is tried once without a pause. Each further round begins
// with a pause, which grows and is jittered.
//
// Contact that breaks again before it has lasted for a spell counts as a round itself, except
// the first time: a server can answer one request and drop the connection for the next, on
// each connection.
type Servers struct {
	most  time.Duration // the longest pause
	spell time.Duration // how long contact must last to count as good

	mu    sync.Mutex
	list  []string
	next  int
	tried int // servers handed out since the last answer
	short int // contacts in a row that have not lasted, the present one included
}

// NewServers returns the servers in a random order.
func NewServers(servers []string, timeout time.Duration) *Servers {
	s := &Servers{
		list:  append([]string(nil), servers...),
		most:  min(max(timeout/10, FirstPause), MostPause),
		spell: max(timeout/10, leastSpell),
	}
	rand.Shuffle(len(s.list), func(i, j int) { s.list[i], s.list[j] = s.list[j], s.list[i] })
	return s
}

// Len returns the number of servers.
func (s *Servers) Len() int { return len(s.list) }

// Spell returns how long contact must last to count as good.
func (s *Servers) Spell() time.Duration { return s.spell }

// Next returns the server to try.
func (s *Servers) Next() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	server := s.list[s.next]
	s.next = (s.next + 1) % len(s.list)
	s.tried++
	return server
}

// Pause returns the time to wait before the server that Next returned last is tried.
func (s *Servers) Pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	round := max(s.short-1, 0) + (s.tried-1)/len(s.list)
	if round <= 0 || (s.tried-1)%len(s.list) != 0 {
		return 0
	}
	return Growing(FirstPause, s.most, round)
}

// Answered records that there is contact.
func (s *Servers) Answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = 0
	s.short++
}

// Lasted records that there is still the same contact, one spell later.
func (s *Servers) Lasted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.short = 0
}

// Short returns the number of contacts in a row that have not lasted, the present one included.
func (s *Servers) Short() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.short
}
