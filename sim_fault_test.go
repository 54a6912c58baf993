package coord_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// fail is what the end of contact, or of the session, does to what is under way. A
// commit becomes uncertain, be it that its request was lost or its reply. Reads are
// repeated, if there is a session to do it. Of events no more is known than that
// there may have been some.
func (x *arbiter) fail(w *wire, why error, over bool) {
	var failed, events []simMessage
	for _, m := range w.in {
		if m.c == nil {
			m.kind = backend.LookAgain
			events = append(events, m)
			continue
		}
		c := m.c
		if c.op != "commit" && !over {
			for _, c := range append(c.twins, c) {
				for _, a := range c.arms {
					if a.inner != nil {
						delete(w.outer, a.inner)
						a.disarm()
					}
				}
				c.data, c.stat, c.names, c.results, c.err = nil, backend.Stat{}, nil, nil, nil
			}
			x.waiting = append(x.waiting, c)
			continue
		}
		if c.op == "commit" {
			c.lose(why)
		} else {
			c.err = c.wrap(why)
		}
		failed = append(failed, simMessage{c: c})
	}
	kept := x.waiting[:0]
	for _, c := range x.waiting {
		switch {
		case c.w != w:
			kept = append(kept, c)
		case c.op == "close":
			if over {
				failed = append(failed, simMessage{c: c})
			} else {
				kept = append(kept, c)
			}
		case over && c.op != "commit":
			c.err = c.wrap(why)
			failed = append(failed, simMessage{c: c})
		case c.op == "commit" && (over || x.draw.IntN(2) == 0):
			if over && x.draw.IntN(2) == 0 {
				c.err = c.wrap(why) // it was never sent
			} else {
				c.lose(why)
			}
			failed = append(failed, simMessage{c: c})
		default:
			kept = append(kept, c)
		}
	}
	clear(x.waiting[len(kept):])
	x.waiting = kept
	w.in = append(failed, events...)
}

// lose is a commit of which nobody can tell what became of it.
func (c *simCall) lose(why error) {
	c.results, c.err = nil, c.wrap(backend.Uncertain(why))
}

// breakContact loses what is under way between p and the store. Contact returns at
// once, unless it is to stay broken.
func (x *arbiter) breakContact(p *peer, stay bool) {
	if p.cut {
		return
	}
	x.collect()
	for _, w := range p.wires {
		if !w.over {
			x.fail(w, nil, false)
		}
	}
	p.link.Partition()
	if p.cut = stay; !stay {
		p.link.Heal()
	}
}

func (x *arbiter) heal(p *peer) {
	if p.cut {
		p.cut = false
		p.link.Heal()
		x.settle()
	}
}

var everyFault = []string{"reaping", "reaping", "partition", "partition", "blip", "expiry", "expiry", "lost request", "lost reply",
	"lost reply", "expiry while cut off", "cancel", "cancel", "pause", "latency", "reaping", "outsider's delete", "outsider's write", "close"}

// fault breaks something, and reports whether that was possible.
func (x *sim) fault() bool {
	what := everyFault[x.draw.IntN(len(everyFault))]
	if slices.Contains(x.sc.without, what) {
		return false
	}
	s := x.slots[x.draw.IntN(len(x.slots))]
	p := s.p
	if what == "expiry while cut off" {
		for _, other := range x.slots {
			if other.p.cut {
				s, p = other, other.p // which does not learn of it
			}
		}
	}
	detail := p.name
	switch what {
	case "partition":
		if p.cut {
			return false
		}
		x.breakContact(p, true)
	case "blip":
		if p.cut {
			return false
		}
		x.breakContact(p, false)
	case "expiry", "expiry while cut off":
		var w *wire
		for _, other := range p.wires {
			if !other.over {
				w = other
			}
		}
		if w == nil || p.cut != (what == "expiry while cut off") {
			return false
		}
		x.mu().Lock()
		x.early[w.ID()] = true
		x.mu().Unlock()
		p.link.Expire(w.ID())
	case "lost request", "lost reply":
		var able []*simCall
		for i, c := range x.waiting {
			if c.from == p && c.w != nil && c.op != "close" && !c.w.over && x.able(i) {
				able = append(able, c)
			}
		}
		if len(able) == 0 {
			return false
		}
		c := able[x.draw.IntN(len(able))]
		detail = c.from.name + " " + c.op + " " + c.path
		if what == "lost reply" {
			x.waiting = slices.Delete(x.waiting, slices.Index(x.waiting, c), slices.Index(x.waiting, c)+1)
			x.tell(what, detail)
			x.serve(c)
		} else if c.op == "commit" {
			x.waiting = slices.Delete(x.waiting, slices.Index(x.waiting, c), slices.Index(x.waiting, c)+1)
			c.lose(nil)
			c.w.in = append(c.w.in, simMessage{c: c})
		}
		x.breakContact(p, false)
	case "cancel":
		a := x.actors[x.draw.IntN(len(x.actors))]
		a.mu.Lock()
		cancel := a.cancel
		a.cancel = nil
		a.mu.Unlock()
		if cancel == nil {
			return false
		}
		detail = a.name
		cancel()
	case "pause":
		p.held = 5 + x.draw.IntN(60)
	case "reaping": // of what holds nothing at the moment
		detail = ""
		before, _ := x.truth.Exists(context.Background(), "/", nil)
		_, err := x.truth.Exists(context.Background(), x.sc.dir, nil)
		x.arbiter.st.ReapContainers()
		after, _ := x.truth.Exists(context.Background(), "/", nil)
		_, err2 := x.truth.Exists(context.Background(), x.sc.dir, nil)
		if before.Pzxid == after.Pzxid && (err == nil) == (err2 == nil) {
			return false
		}
	case "latency":
		detail = ""
		x.idle(time.Duration(x.draw.IntN(300_000_000)))
	case "outsider's delete", "outsider's write":
		if x.sc.dir == "" {
			return false
		}
		list, _, _ := x.truth.Children(context.Background(), x.sc.dir, nil)
		if len(list) == 0 {
			return false
		}
		path := x.sc.dir + "/" + list[x.draw.IntN(len(list))]
		detail = path
		op := backend.SetData(path, nil, backend.AnyVersion)
		if what == "outsider's delete" {
			stat, err := x.truth.Exists(context.Background(), path, nil)
			if err != nil {
				return false
			}
			x.mu().Lock()
			x.outside[path] = true
			x.deleted[path] = stat.Czxid
			// A downgrade may be under way, of which its holder does not know yet.
			x.outside[strings.Replace(path, "__READ__", "__WRIT__", 1)] = true
			x.mu().Unlock()
			op = backend.Delete(path, backend.AnyVersion)
		}
		if _, err := x.truth.Commit(context.Background(), op); err != nil {
			return false
		}
	case "close":
		if p.cut || s.users > 1 {
			return false // of two callers in one process one may go on for a moment or not
		}
		old := s.client()
		s.open()
		x.joined.Go(func() { old.Close() })
	}
	x.tell(what+":", detail)
	x.note(what)
	return true
}

// mend ends what is broken.
func (x *sim) mend() {
	select {
	case <-x.calm:
	default:
		close(x.calm)
		x.tell("calm")
	}
	for _, p := range x.peers {
		x.heal(p)
		p.held = 0
	}
}
