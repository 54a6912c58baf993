package coordtest

import (
	"sync"
	"time"

	"github.com/go-coord/coord/backend/memory"
)

// memoryProvider provides a store in memory.
type memoryProvider struct{ store *memory.Store }

func newMemory(o *Options) memoryProvider {
	return memoryProvider{memory.New(&memory.Options{SessionTimeout: o.timeout()})}
}

func (p memoryProvider) Root() string { return "" }

func (p memoryProvider) Connect(name string) (Connection, error) {
	return &memoryConnection{Link: p.store.Link(name)}, nil
}

// memoryConnection is a link of a store, which knows one kind of missing contact.
type memoryConnection struct {
	*memory.Link

	mu            sync.Mutex
	refuse, black bool
}

func (c *memoryConnection) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refuse && !c.black {
		c.Partition()
		c.Heal()
	}
}

func (c *memoryConnection) Refuse(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = on
	c.contact()
}

func (c *memoryConnection) Blackhole(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.black = on
	c.contact()
}

// contact needs mu.
func (c *memoryConnection) contact() {
	if c.refuse || c.black {
		c.Partition()
	} else {
		c.Heal()
	}
}

func (c *memoryConnection) Delay(d time.Duration) { c.SetLatency(d) }

func (c *memoryConnection) Expire(session int64) error {
	c.Link.Expire(session)
	return nil
}

func (c *memoryConnection) Close() error { return nil }
