package contact

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
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

// Sleep waits for d, until over is closed or until ctx ends.
func Sleep(ctx context.Context, over <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-ctx.Done():
	}
}

// A Target is one address of a server.
type Target struct {
	Server  string // host:port as in the list
	Address string // what to dial: Server, or an address of its name; empty if the lookup failed
}

// String returns the server and, if that is a name, the address.
func (t Target) String() string {
	if t.Address == t.Server || t.Address == "" {
		return t.Server
	}
	return t.Server + " (" + t.Address + ")"
}

// Lookup returns the addresses of a host. Nil means that names are passed on as they are.
type Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

// LookupWith returns the lookup of a resolver; nil means the default resolver at the time of each
// lookup.
func LookupWith(r *net.Resolver) Lookup {
	return func(ctx context.Context, host string) ([]netip.Addr, error) {
		if r == nil {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
		return r.LookupNetIP(ctx, "ip", host)
	}
}

// Servers is what a session knows about its servers: their addresses, which of them failed, and
// how long to pause before it tries them again.
//
// Each address of a name is a server of its own. The address that was tried longest ago comes
// first, and those whose latest attempt failed come last.
//
// After contact broke, each address is tried once without a pause. Each further round begins
// with a pause, which grows and is jittered. Names are looked up again in each round.
//
// Contact that breaks again before it has lasted for a spell counts as a round itself, except
// the first time: a server can answer one request and drop the connection for the next, on
// each connection.
type Servers struct {
	list   []string
	lookup Lookup
	most   time.Duration // the longest pause
	spell  time.Duration // how long contact must last to count as good

	mu      sync.Mutex
	known   map[string][]Target // the latest addresses of each server
	history map[Target]*history
	turns   int // attempts in all
	rounds  int // begun since the last answer
	short   int // contacts in a row that have not lasted, the present one included
}

// history is what is known about one address.
type history struct {
	turn   int // of the latest attempt
	rank   uint64
	failed bool // the latest attempt failed
}

// NewServers returns the servers of a list.
func NewServers(servers []string, lookup Lookup, timeout time.Duration) *Servers {
	s := &Servers{
		list:    slices.Clone(servers),
		lookup:  lookup,
		most:    min(max(timeout/10, FirstPause), MostPause),
		spell:   max(timeout/10, leastSpell),
		known:   make(map[string][]Target),
		history: make(map[Target]*history),
	}
	for _, server := range servers {
		if s.isAddress(server) {
			s.learn(server, []Target{{server, server}})
		}
	}
	return s
}

// isAddress reports whether a server can be dialed without a lookup.
func (s *Servers) isAddress(server string) bool {
	host, _, _ := net.SplitHostPort(server)
	_, err := netip.ParseAddr(host)
	return s.lookup == nil || err == nil
}

// learn replaces the addresses of a server.
func (s *Servers) learn(server string, targets []Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.known[server] {
		if !slices.Contains(targets, t) {
			delete(s.history, t)
		}
	}
	s.known[server] = targets
	for _, t := range targets {
		if s.history[t] == nil {
			s.history[t] = &history{rank: rand.Uint64()}
		}
	}
}

// resolve looks a server up.
func (s *Servers) resolve(ctx context.Context, server string) error {
	host, port, _ := net.SplitHostPort(server)
	addrs, err := s.lookup(ctx, host)
	if err != nil {
		return err
	}
	if len(addrs) == 0 {
		return &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	var targets []Target
	for _, a := range addrs {
		t := Target{server, net.JoinHostPort(a.Unmap().String(), port)}
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	s.learn(server, targets)
	return nil
}

// knownOf returns the latest addresses of a server.
func (s *Servers) knownOf(server string) []Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[server]
}

// Targets returns all addresses that are known, and a Target without an address for each server
// of which none is known.
func (s *Servers) Targets() []Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Target
	for _, server := range s.list {
		if len(s.known[server]) == 0 {
			all = append(all, Target{Server: server})
		}
		all = append(all, s.known[server]...)
	}
	return all
}

// Lookup looks all names up, and returns the addresses that are known then, the one to try first in front.
func (s *Servers) Lookup(ctx context.Context, first string) []Target {
	var all sync.WaitGroup
	for _, server := range s.list {
		if !s.isAddress(server) {
			all.Go(func() { _ = s.resolve(ctx, server) }) // Targets has it without an address
		}
	}
	all.Wait()
	targets := s.Targets()
	slices.SortStableFunc(targets, func(a, b Target) int {
		switch {
		case a.Address == first && b.Address != first:
			return -1
		case b.Address == first && a.Address != first:
			return 1
		}
		return 0
	})
	return targets
}

// take returns the one of some targets that is to be tried next, and counts the attempt.
func (s *Servers) take(from []Target) Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := func(t Target) history {
		if h := s.history[t]; h != nil {
			return *h
		}
		return history{failed: true} // it was replaced a moment ago
	}
	best := from[0]
	for _, t := range from[1:] {
		a, b := of(t), of(best)
		switch {
		case a.failed != b.failed:
			if b.failed {
				best = t
			}
		case a.turn < b.turn, a.turn == b.turn && a.rank < b.rank:
			best = t
		}
	}
	s.turns++
	if h := s.history[best]; h != nil {
		h.turn = s.turns
	}
	return best
}

// Failed records that the latest attempt at an address failed.
func (s *Servers) Failed(t Target) { s.mark(t, true) }

func (s *Servers) mark(t Target, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.history[t]; h != nil {
		h.failed = failed
	}
}

// Spell returns how long contact must last to count as good.
func (s *Servers) Spell() time.Duration { return s.spell }

// round begins a round. It returns the pause before it.
func (s *Servers) round() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := max(s.short-1, 0) + s.rounds
	s.rounds++
	if n == 0 {
		return 0
	}
	return Growing(FirstPause, s.most, n)
}

// Answered records that there is contact with an address.
func (s *Servers) Answered(t Target) {
	s.mark(t, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds = 0
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
