package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

func armTroubleLeaves() []leaf {
	return []leaf{
		{"refuses invalid targets, and arms nothing", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			s.refused(c.Arm(s.ctx, 0), backend.ErrInvalid, "arm", "", 0)
			long := "/" + strings.Repeat("x", backend.MaxRequest/2)
			for name, test := range map[string]struct {
				bad backend.Target
				err error
			}{
				"no watch":       {backend.Target{Path: n}, backend.ErrInvalid},
				"a bad path":     {forChildren(n + "/"), backend.ErrBadPath},
				"no path":        {forData(""), backend.ErrBadPath},
				"a relative one": {forData("n"), backend.ErrBadPath},
				"too much":       {forData(long + long), backend.ErrTooLarge},
			} {
				for place := range 3 {
					targets := []backend.Target{forData(n), forChildren(n)}
					targets = append(targets[:place], append([]backend.Target{test.bad}, targets[place:]...)...)
					err := c.Arm(s.ctx, 0, targets...) // since 0: all would fire LookAgain
					s.refused(err, test.err, "arm", test.bad.Path, 0)
					o.set(n, "new")
					c.sync()
					for _, t := range targets {
						if t.Watch != nil && hasFired(t.Watch) {
							s.Fatalf("%s at %d: a watch of a refused Arm has fired", name, place)
						}
					}
				}
			}
			// The sum of the paths is limited.
			err := c.Arm(s.ctx, 0, forData(long), forData(long))
			s.refused(err, backend.ErrTooLarge, "arm", long, 0)
			fits := forData(long)
			c.arm(0, fits)
			s.marked(fits, backend.LookAgain, "its node is missing")
		}},
		{"accepts very many targets", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			const n = 2000
			there := o.create("there", "", backend.Persistent)
			c.sync()
			var targets []backend.Target
			for i := range n {
				if i%10 == 0 {
					targets = append(targets, forData(there))
				} else {
					targets = append(targets, forChildren(s.path(fmt.Sprint("missing-", i))))
				}
			}
			c.arm(math.MaxInt64, targets...)
			for i, t := range targets {
				if i%10 == 0 {
					s.marked(t, 0, "its node exists")
				} else {
					s.marked(t, backend.LookAgain, "its node is missing")
				}
			}
			o.remove(there)
			for i := 0; i < n; i += 10 {
				s.fires(targets[i].Watch, backend.Deleted)
			}
		}},
		{"does not fire watches that are stopped before or after it", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n, gone := o.create("n", "", backend.Persistent), s.path("gone")
			c.sync()
			targets := []backend.Target{forData(n), forData(gone), forChildren(n), forData(n), forChildren(n), forChildren(gone)}
			for _, t := range targets[:3] {
				t.Watch.Stop()
			}
			c.arm(math.MaxInt64, targets...)
			s.marked(targets[5], backend.LookAgain, "its node is missing")
			targets[3].Watch.Stop()
			o.remove(n)
			s.fires(targets[4].Watch, backend.Deleted)
			for _, t := range targets[:4] {
				c.silent(t.Watch, "it was stopped")
			}
		}},
		{"misses nothing after very many that were stopped", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := o.create("n", "", backend.Persistent)
			c.sync()
			for i := range 100 {
				old, oldChildren := forData(n), forChildren(n)
				c.arm(math.MaxInt64, old, oldChildren)
				old.Watch.Stop()
				oldChildren.Watch.Stop()
				if i%3 == 0 {
					o.set(n, "unseen") // an event without a waiter
					c.sync()
				}
				t := forData(n)
				c.arm(c.stat(n, nil).Mzxid, t)
				s.marked(t, 0, "nothing has happened since")
				o.set(n, "seen")
				s.fires(t.Watch, backend.LookAgain)
			}
		}},
		{"leaves nothing armed when its context has ended", func(s *scene) {
			c := s.open("a")
			latency := s.delay(c.link)
			n := c.create("n", "", backend.Persistent)
			ended, done, unit := 0, 0, latency/2
			for i := range 40 {
				data, children := forData(n), forChildren(n)
				since := c.stat(n, nil).Mzxid
				ctx, cancel := context.WithTimeoutCause(s.ctx, unit*time.Duration(i%8)+time.Duration(i), errors.New("too slow"))
				err := c.Arm(ctx, since, data, children)
				reason := context.Cause(ctx)
				cancel()
				c.set(n, "new")
				c.sync()
				if err == nil {
					done++
					s.marked(data, backend.LookAgain, "it was armed")
					children.Watch.Stop()
					continue
				}
				if ended++; i%8 == 7 {
					unit *= 2 // the machine is slow
				}
				s.refused(err, context.DeadlineExceeded, "arm", n, 0)
				s.refused(err, reason, "arm", n, 0)
				s.marked(data, 0, "its Arm had failed")
				s.marked(children, 0, "its Arm had failed")
			}
			if ended == 0 || done == 0 && latency > 0 {
				s.Errorf("%d have ended and %d are done: the test hit nothing", ended, done)
			}
		}},
		{"waits for contact, and arms on the new one", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n, gone := o.create("n", "", backend.Persistent), o.create("gone", "", backend.Persistent)
			c.sync()
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			there, missing := forData(n), forChildren(gone)
			done := make(chan error, 1)
			go func() { done <- c.Arm(s.ctx, math.MaxInt64, there, missing) }()
			o.remove(gone)
			s.settle(o) // the call waits for contact now
			c.link.Heal()
			if err := <-done; err != nil {
				s.Fatalf("arm: %v", err)
			}
			c.sync()
			s.marked(missing, backend.LookAgain, "the node was deleted while there was no contact")
			s.marked(there, 0, "nothing has happened to the node")
			o.remove(n)
			s.fires(there.Watch, backend.Deleted)
		}},
		{"is repeated when its request or its reply is lost", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			for i := range 6 {
				f := faults()[i%2]
				n := o.create(fmt.Sprint("n", i), "", backend.Persistent)
				c.sync()
				since := c.stat(n, nil).AsOf
				data, children, missing := forData(n), forChildren(n), forData(s.path("missing"))
				f.drop(c.link)
				c.arm(since, data, children, missing)
				s.marked(missing, backend.LookAgain, "its node is missing")
				o.remove(n)
				// The watches that were armed before the contact broke fire LookAgain.
				s.await(data.Watch.Fired(), "the watch for the data with a lost "+f.name)
				s.await(children.Watch.Fired(), "the watch for the children with a lost "+f.name)
				after := forData(n)
				c.sync()
				c.arm(math.MaxInt64, after)
				s.marked(after, backend.LookAgain, "the node is deleted")
			}
		}},
		{"fails when the session is over, and its watches stay silent", func(s *scene) {
			for i, end := range []func(c *client){
				func(c *client) { c.Close() },
				func(c *client) { c.link.Expire(c.ID()); c.lost() },
				func(c *client) { c.link.Partition(); c.lost(); c.link.Heal() },
			} {
				c, o := s.open(fmt.Sprint("a", i)), s.open("b")
				n := o.create(fmt.Sprint("n", i), "", backend.Persistent)
				c.sync()
				before := forData(n)
				c.arm(math.MaxInt64, before)
				end(c)
				s.fires(before.Watch, backend.LookAgain)
				there, missing := forData(n), forChildren(s.path("missing"))
				s.refused(c.Arm(s.ctx, 0, there, missing), c.Err(), "arm", n, 0)
				o.remove(n)
				s.settle(o)
				s.marked(there, 0, "its Arm had failed")
				s.marked(missing, 0, "its Arm had failed")
			}
		}},
		{"fails when the session ends while it waits for contact", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
			t := forData(n)
			done := make(chan error, 1)
			go func() { done <- c.Arm(s.ctx, 0, t) }()
			c.lost()
			s.refused(<-done, backend.ErrSessionLost, "arm", n, 0)
			s.marked(t, 0, "its Arm had failed")
		}},
	}
}
