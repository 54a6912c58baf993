package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// heldThings has the holders of one lock, as far as they know.
type heldThings struct {
	token            int64
	node             string          // of the writer with that token
	keeps            map[string]bool // the nodes that their clients may keep
	accepted         int64           // the highest token that a fenced resource has seen
	writers, readers map[*coord.Hold]bool
}

func (x *sim) at(path string) *heldThings {
	t := x.held[path]
	if t == nil {
		t = &heldThings{keeps: make(map[string]bool), writers: make(map[*coord.Hold]bool), readers: make(map[*coord.Hold]bool)}
		x.held[path] = t
	}
	return t
}

// standing checks that a holder that was just granted has a node, as far as its client can
// know. An earlier holder may learn of the deletion of its node later than another caller of
// its client that waits behind it: its own watch is armed lazily.
func (x *sim) standing(a *actor, h *coord.Hold, now bool) {
	x.arbiter.mu.Lock()
	knows := x.knows[a.slot.p.name+h.Path()]
	x.arbiter.mu.Unlock()
	if knows && now && h.Err() == nil {
		x.simulation.t.Errorf("seed %d: %s was granted after its client had learned of its deletion", x.arbiter.seed, h.Path())
	}
	if _, err := x.truth.Exists(context.Background(), h.Path(), nil); err != nil && !x.void(h) {
		x.simulation.t.Errorf("seed %d: %s was granted and has no node", x.arbiter.seed, h.Path())
	}
}

// takes checks a grant of the lock at path, which was just made.
func (x *sim) takes(a *actor, path string, h *coord.Hold, reads bool) {
	x.has(a, path, h, reads, true)
}

// has is takes for a grant that may have been made some time ago.
func (x *sim) has(a *actor, path string, h *coord.Hold, reads, now bool) {
	a.say("granted " + h.Path())
	x.mu().Lock()
	defer x.mu().Unlock()
	x.count["grant"]++
	x.dones[h] = h.Done()
	x.standing(a, h, now)
	t := x.at(path)
	x.conflict(h, t.writers)
	if reads {
		t.readers[h] = true
		return
	}
	x.conflict(h, t.readers)
	if t.node == h.Path() && t.token == h.Token() && t.keeps[h.Path()] {
		x.count["kept"]++ // the holds of a kept lock have one token
	} else {
		x.token = t.token
		x.grows(h)
		t.token = x.token
	}
	if !x.void(h) {
		t.node = h.Path()
	}
	t.writers[h] = true
}

// mayKeep records that the client of a hold may keep its node.
func (x *sim) mayKeep(path string, h *coord.Hold, keeps bool) {
	x.mu().Lock()
	defer x.mu().Unlock()
	x.at(path).keeps[h.Path()] = keeps
}

// gives records that the holder stops holding, before the holder reports it.
func (x *sim) gives(path string, h *coord.Hold) {
	stat, _ := x.truth.Exists(context.Background(), h.Path(), nil)
	x.mu().Lock()
	defer x.mu().Unlock()
	x.nodes[h] = stat.Czxid
	delete(x.at(path).writers, h)
	delete(x.at(path).readers, h)
}

// fenced writes to a resource that refuses a token lower than the highest that it has seen. A
// holder that is refused must have lost its hold, or be about to learn of it.
func (x *sim) fenced(path string, h *coord.Hold) {
	x.mu().Lock()
	defer x.mu().Unlock()
	t := x.at(path)
	switch {
	case h.Token() >= t.accepted:
		t.accepted = h.Token()
		x.count["fenced write"]++
	case x.void(h):
		x.count["refused write"]++
	default:
		x.simulation.t.Errorf("seed %d: %s: the rightful holder's token %d is refused after %d", x.arbiter.seed, path, h.Token(), t.accepted)
	}
}

// works does something under a hold for some steps.
func (x *sim) works(a *actor, path string, h *coord.Hold, steps int) {
	for range a.r.IntN(steps + 1) {
		a.pause()
		if h.Token() != 0 {
			x.fenced(path, h)
		}
		if h.Err() != nil {
			return
		}
		if a.r.IntN(6) == 0 {
			if err := h.Verify(context.Background()); err != nil {
				a.say("verify: " + err.Error())
			}
		}
	}
}

// heard checks that a caller that waits for the end of a hold has learned of it.
func (x *sim) heard(h *coord.Hold) {
	x.mu().Lock()
	done := x.dones[h]
	x.mu().Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	default:
		if errors.Is(h.Err(), coord.ErrLost) {
			x.errorf("%s is lost, and its Done is not closed", h.Path())
		}
	}
}

// releases gives a hold back.
func (x *sim) releases(a *actor, path string, h *coord.Hold) {
	a.pause()
	x.heard(h)
	x.gives(path, h)
	x.gave(a, h.Release(), h)
	x.ended(h)
	a.say("released")
}

// gave checks the result of Release for some holds: it has removed their nodes, or reports that
// another may have done it.
func (x *sim) gave(a *actor, err error, holds ...*coord.Hold) {
	switch {
	case errors.Is(err, coord.ErrLost), errors.Is(err, coord.ErrUncertain):
		return
	case err != nil:
		a.errorf("release: %v", err)
		return
	}
	x.mu().Lock()
	defer x.mu().Unlock()
	for _, h := range holds {
		// In a recreated directory, the node of a hold can have the name of an earlier
		// node of the same call, which never was a hold.
		gone, own := x.deleted[h.Path()], x.nodes[h]
		if x.at(path.Dir(h.Path())).keeps[h.Path()] {
			continue // a Release that keeps the node does not ask for it
		}
		if x.outside[h.Path()] && (gone == 0 || own == 0 || gone == own) {
			x.simulation.t.Errorf("seed %d: Release of %s returned nil, and another had deleted the node", x.arbiter.seed, h.Path())
		}
	}
}

// lock makes one attempt to have a lock, and returns nil if it failed.
func (x *sim) lock(a *actor, lock func(context.Context) (*coord.Hold, error)) (h *coord.Hold) {
	a.try("lock", func(ctx context.Context) (err error) {
		if h, err = lock(ctx); errors.Is(err, coord.ErrLocked) {
			a.note("locked")
			return nil
		}
		return err
	})
	return h
}

// empty checks that nothing is left in the directories.
func (x *sim) empty(dirs ...string) {
	for _, dir := range dirs {
		if left, _, _ := x.truth.Children(context.Background(), dir, nil); len(left) > 0 {
			x.errorf("left behind: %v", left)
		}
	}
}

func mutexScenario() *scenario {
	const path = "/sim/lock"
	return &scenario{
		name: "mutex", share: 10, clients: 3, dir: path,
		must: []string{"grant", "kept", "loss", "gave up", "locked", "fenced write", "refused write", "cancel", "outsider's delete", "outsider's write"},
		play: func(x *sim) {
			for i := range 4 { // two of them in one client
				x.act("worker", i, func(a *actor) {
					for range 3 {
						var o coord.MutexOptions
						if a.r.IntN(2) == 0 {
							o.Keep = 2 * time.Second
						}
						m := coord.NewMutex(a.client(), path, &o)
						lock := m.Lock
						if a.r.IntN(6) == 0 {
							lock = m.TryLock
						}
						if h := x.lock(a, lock); h != nil {
							x.mayKeep(path, h, o.Keep > 0)
							x.takes(a, path, h, false)
							x.works(a, path, h, 4)
							x.releases(a, path, h)
						}
					}
				})
			}
		},
		end: func(x *sim) { x.empty(path) },
	}
}

func rwMutexScenario() *scenario {
	const path = "/sim/rw"
	return &scenario{
		name: "readers and writers", share: 10, clients: 4, dir: path,
		must: []string{"grant", "loss", "gave up", "locked", "downgrade", "fenced write", "cancel", "outsider's delete"},
		play: func(x *sim) {
			for i := range 5 {
				x.act("worker", i, func(a *actor) {
					for range 3 {
						rw := coord.NewRWMutex(a.client(), path, nil)
						kind := a.r.IntN(6)
						h := x.lock(a, []func(context.Context) (*coord.Hold, error){rw.Lock, rw.Lock, rw.TryLock, rw.RLock, rw.RLock, rw.TryRLock}[kind])
						if h == nil {
							continue
						}
						x.takes(a, path, h, kind > 2)
						x.works(a, path, h, 3)
						if kind <= 2 && a.r.IntN(3) == 0 {
							x.downgrades(a, rw, path, h)
						}
						x.releases(a, path, h)
					}
				})
			}
		},
		end: func(x *sim) { x.empty(path) },
	}
}

// downgrades makes a reader of a writer: from here on readers may join, and other writers may
// not.
func (x *sim) downgrades(a *actor, rw *coord.RWMutex, path string, h *coord.Hold) {
	x.mu().Lock()
	delete(x.at(path).writers, h)
	x.at(path).readers[h] = true
	if x.outside[h.Path()] {
		x.early[h.Session()] = true // the node that it moves to is void as well
	}
	x.mu().Unlock()
	err := rw.Downgrade(context.Background(), h)
	switch {
	case err == nil:
		a.note("downgrade")
		a.linger(3)
	case h.Err() == nil && !errors.Is(err, coord.ErrClosed):
		a.errorf("downgrade: %v", err)
	}
}

// lockAllScenario has callers of LockAll beside callers that take the same locks one by one, in
// the order of their paths.
func lockAllScenario() *scenario {
	paths := []string{"/sim/all/a", "/sim/all/b", "/sim/all/c"}
	return &scenario{
		name: "lock all", share: 6, clients: 3, dir: paths[1],
		must: []string{"grant", "all", "nested", "joint commit", "retreat", "kept", "gave up", "cancel", "lost while others were awaited", "outsider's delete"},
		play: func(x *sim) {
			for i := range 4 {
				x.act("worker", i, func(a *actor) {
					for range 2 {
						lockers := make(map[string]coord.Locker)
						var list []coord.Locker
						of := make(map[string]bool) // read
						keeps := make(map[string]bool)
						for _, j := range a.r.Perm(3)[:2+a.r.IntN(2)] {
							p := paths[j]
							switch rw := coord.NewRWMutex(a.client(), p, nil); {
							case j > 0: // with local turns
								var o coord.MutexOptions
								if keeps[p] = a.r.IntN(2) == 0; keeps[p] {
									o.Keep = 2 * time.Second
								}
								lockers[p] = coord.NewMutex(a.client(), p, &o)
							case a.r.IntN(3) == 0:
								of[p], lockers[p] = true, rw.RLocker()
							default:
								lockers[p] = rw
							}
							list = append(list, lockers[p])
						}
						has := func(p string, h *coord.Hold, now bool) {
							x.mayKeep(p, h, keeps[p])
							x.has(a, p, h, of[p], now)
						}
						if a.r.IntN(2) == 0 {
							var holds []*coord.Hold
							for _, p := range paths {
								if lockers[p] == nil {
									continue
								}
								h := x.lock(a, lockers[p].Lock)
								if h == nil {
									break
								}
								has(p, h, true)
								holds = append(holds, h)
							}
							if len(holds) == len(list) {
								a.note("nested")
								a.linger(4)
							}
							for _, h := range holds {
								x.releases(a, path.Dir(h.Path()), h)
							}
							continue
						}
						var set *coord.HoldSet
						if !a.try("lock all", func(ctx context.Context) (err error) {
							if set, err = coord.LockAll(ctx, list...); errors.Is(err, coord.ErrLost) {
								a.note("lost while others were awaited")
								return nil
							}
							return err
						}) || set == nil {
							continue
						}
						a.note("all")
						// They are in the order in which they were granted.
						for i, h := range set.Holds() {
							has(path.Dir(h.Path()), h, i == len(set.Holds())-1)
						}
						a.linger(4)
						for _, h := range set.Holds() {
							x.gives(path.Dir(h.Path()), h)
						}
						x.gave(a, set.Release(), set.Holds()...)
					}
				})
			}
			x.applied = func(c *simCall) {
				count := make(map[backend.OpKind]int)
				for _, op := range c.ops {
					count[op.Kind]++
				}
				if count[backend.OpCreate] > 1 {
					x.note("joint commit")
				}
				if count[backend.OpDelete] > 1 && count[backend.OpCreate] == 0 {
					x.note("retreat")
				}
			}
		},
		end: func(x *sim) { x.empty(paths...) },
	}
}

func revocationScenario() *scenario {
	const path = "/sim/revoked"
	return &scenario{
		name: "revocation", share: 6, clients: 4, dir: path,
		must: []string{"grant", "consent", "revoked", "forced", "gave up", "cancel", "outsider's delete"},
		play: func(x *sim) {
			for i := range 3 {
				x.act("worker", i, func(a *actor) {
					for range 3 {
						var o coord.MutexOptions
						if a.r.IntN(2) == 0 {
							o.Keep = 2 * time.Second
						}
						h := x.lock(a, coord.NewMutex(a.client(), path, &o).Lock)
						if h == nil {
							continue
						}
						x.mayKeep(path, h, o.Keep > 0)
						x.takes(a, path, h, false)
						willing := a.r.IntN(3) > 0
						for range 3 + a.r.IntN(10) {
							time.Sleep(time.Duration(a.r.IntN(15)) * time.Millisecond) // a request is read some time later
							a.pause()
							x.fenced(path, h)
							if _, asked := h.Revocation(); asked && willing {
								a.note("consent")
								break
							}
							if h.Err() != nil {
								break
							}
						}
						if errors.Is(h.Err(), coord.ErrRevoked) {
							a.note("forced")
						}
						x.releases(a, path, h)
					}
				})
			}
			x.act("revoker", 3, func(a *actor) {
				for i := range 4 {
					a.linger(20)
					o := &coord.RevokeOptions{By: "revoker", Reason: fmt.Sprint(i)}
					if a.r.IntN(2) == 0 {
						o.ForceAfter = time.Duration(1+a.r.IntN(40)) * time.Millisecond
						x.mu().Lock()
						x.forced = true
						x.mu().Unlock()
					}
					if a.try("revoke", func(ctx context.Context) error {
						return coord.NewMutex(a.client(), path, nil).Revoke(ctx, o)
					}) {
						a.note("revoked")
					}
				}
			})
			// A holder whose node is deleted by force may learn of it after the next grant.
			x.applied = func(c *simCall) {
				if x.forced && c.from == x.peers[3] {
					for _, op := range c.ops {
						if op.Kind == backend.OpDelete {
							x.outside[op.Path] = true
						}
					}
				}
			}
		},
		end: func(x *sim) { x.empty(path) },
	}
}
