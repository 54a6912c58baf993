package zookeeper

import (
	"sync"
	"time"

	"github.com/go-coord/coord/backend/internal/contact"
)

// hosts is the list of servers of one session. It is the HostProvider of the zk client, which
// asks it for the next server to dial. It does not resolve names; the dialer does, for each
// connection. The dialer also makes the pauses, since those of the zk client last a second at
// most.
type hosts struct {
	*contact.Servers

	mu   sync.Mutex
	mute map[string]bool // the addresses that accepted a connection and have not answered on it
}

func newHosts(servers []string, timeout time.Duration) *hosts {
	return &hosts{Servers: contact.NewServers(servers, timeout), mute: make(map[string]bool)}
}

// Init is part of zk.HostProvider.
func (h *hosts) Init([]string) error { return nil }

// Next is part of zk.HostProvider. It never reports that all servers have been tried: the zk
// client would sleep for a second and drop its queue.
func (h *hosts) Next() (server string, retryStart bool) { return h.Servers.Next(), false }

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
	delete(h.mute, address)
	h.mu.Unlock()
	h.Answered()
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
