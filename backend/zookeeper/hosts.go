package zookeeper

import "github.com/go-coord/coord/backend/internal/contact"

// hosts is the HostProvider of the zk client, which asks it for a server and then calls the dialer.
// The dialer tries the servers by itself, so there is nothing to choose here. Neither does hosts make
// pauses, since those of the zk client last a second at most.
type hosts struct{ *contact.Servers }

// Init is part of zk.HostProvider.
func (hosts) Init([]string) error { return nil }

// Len is part of zk.HostProvider.
func (hosts) Len() int { return 1 }

// Next is part of zk.HostProvider. It never reports that all servers have been tried: the zk
// client would sleep for a second and drop its queue.
func (hosts) Next() (server string, retryStart bool) { return "a server", false }

// Connected is part of zk.HostProvider. It does nothing: a server that welcomes a session and
// drops it at once is not good.
func (hosts) Connected() {}
