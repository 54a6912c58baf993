package zookeeper

import "github.com/go-coord/coord/backend"

// Interests returns the number of watches that a session holds, armed or expected. It is zero
// only if no trace of a watch is left.
func Interests(s backend.Session) int {
	h := s.(*session).hub
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.expected)
	for _, set := range h.armed {
		n += len(set)
	}
	for _, set := range h.arming {
		n += len(set)
	}
	return n + len(h.armed) + len(h.arming)
}
