package sweep

import (
	"sync"

	"github.com/go-coord/coord"
)

// resource is protected by a lock. It checks exactly the recipe's guarantees: no two holders
// at once, and tokens that grow.
type resource struct {
	x     *cell
	limit int // largest sum of the holders' weights

	mu      sync.Mutex
	highest int64
	node    string // of the hold with the highest token
	inside  map[*coord.Hold]tenant
}

type tenant struct {
	p      *player
	weight int // of the limit
}

// resource returns the resource called name, which allows holders up to limit.
func (x *cell) resource(name string, limit int) *resource {
	return on(x, "resource "+name, func() *resource {
		return &resource{x: x, limit: limit, inside: make(map[*coord.Hold]tenant)}
	})
}

// enter is called when a hold was granted. A holder whose session is lost may be inside
// without knowing it: the service can end a session before its client is notified. That
// excuses the holds of that session and no other.
func (r *resource) enter(p *player, h *coord.Hold, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := weight
	for o, in := range r.inside {
		if o.Err() == nil && !in.p.lostWith(o) {
			sum += in.weight
		}
	}
	if sum > r.limit && h.Err() == nil && !p.lostWith(h) {
		r.x.violation("%s is inside with %d of %d: %v", p.name, sum, r.limit, r.names())
	}
	if token := h.Token(); token != 0 {
		// The holds on one kept node have one token.
		if token <= r.highest && h.Path() != r.node && !p.lostWith(h) {
			r.x.violation("%s was granted token %d after %d", p.name, token, r.highest)
		}
		if token > r.highest {
			r.highest, r.node = token, h.Path()
		}
	}
	r.inside[h] = tenant{p, weight}
	p.grants.Add(1)
	r.x.step(p.name + " is inside")
}

func (r *resource) names() (list []string) {
	for _, in := range r.inside {
		list = append(list, in.p.name)
	}
	return list
}

// become changes the weight of a holder.
func (r *resource) become(h *coord.Hold, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if in, ok := r.inside[h]; ok {
		in.weight = weight
		r.inside[h] = in
	}
}

// leave is called before a hold is released.
func (r *resource) leave(h *coord.Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, h)
}

// release leaves and releases.
func (r *resource) release(p *player, h *coord.Hold) bool {
	r.leave(h)
	return p.gave("release", h.Release())
}

// cycle locks, runs inside, and releases.
func (r *resource) cycle(p *player, what string, l coord.Locker, weight int, inside func(h *coord.Hold)) bool {
	h, err := l.Lock(p.x.ctx)
	if !p.ok(what, err) {
		return false
	}
	r.enter(p, h, weight)
	if inside != nil {
		inside(h)
	}
	return r.release(p, h)
}
