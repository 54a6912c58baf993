package backendtest

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/go-coord/coord/backend"
)

// armDefects are the defects of Arm.
func armDefects() []defect {
	return []defect{
		{"Arm ignores since", "arm", "fires by since for the changes that it came too late for", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, _ int64, targets []backend.Target) error {
				return m.Session.Arm(ctx, math.MaxInt64, targets...)
			}
		}},
		{"Arm treats the commit since as one after it", "arm", "misses no change of a node that the commit since created", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				return m.Session.Arm(ctx, since-1, targets...)
			}
		}},
		{"Arm treats the commit after since as one before it", "arm", "fires by since for the changes that it came too late for", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				return m.Session.Arm(ctx, min(since, math.MaxInt64-1)+1, targets...)
			}
		}},
		{"Arm compares the zxid of the data for the children", "arm", "fires by since for the changes that it came too late for", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				for _, t := range targets {
					stat, err := m.Session.Exists(ctx, t.Path, nil)
					if err == nil && stat.Mzxid <= since {
						err = m.Session.Arm(ctx, math.MaxInt64, t)
					} else {
						err = m.Session.Arm(ctx, since, t)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}
		}},
		{"Arm reports Deleted for a node that was missing", "arm", "fires the watch of a missing node before it returns, and arms the others", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				for _, t := range targets {
					if _, err := m.Session.Exists(ctx, t.Path, nil); errors.Is(err, backend.ErrNotFound) {
						t.Watch.Fire(backend.Deleted)
					}
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
		{"Arm reports Deleted for a node that was deleted before", "arm", "does not report a deletion before it, though older watches do", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				for _, t := range targets {
					if _, err := m.Session.Exists(ctx, t.Path, nil); errors.Is(err, backend.ErrNotFound) {
						t.Watch.Fire(backend.Deleted)
					}
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
		{"Arm arms only the first of its watches", "arm", "arms all of its watches, each for its own events", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				return m.Session.Arm(ctx, since, targets[:1]...)
			}
		}},
		{"Arm stops at a missing node", "arm", "fires the watch of a missing node before it returns, and arms the others", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				for _, t := range targets {
					if err := m.Session.Arm(ctx, since, t); err != nil || t.Watch.Kind() != 0 {
						return err
					}
				}
				return nil
			}
		}},
		{"Arm arms one node after the other", "arm", "(may) checks all of its nodes at one moment", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				for _, t := range targets {
					if err := m.Session.Arm(ctx, since, t); err != nil {
						return err
					}
				}
				return nil
			}
		}},
		{"Arm returns before it reports that it came too late", "arm", "fires the watch of a missing node before it returns, and arms the others", late},
		{"Arm forgets the watches of a set", "arm", "accepts watches of a set", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				for _, t := range targets {
					if t.Watch.Fired() == nil {
						t.Watch.Stop()
					}
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
		{"one Arm in three is lost", "arm", "misses nothing between a read and itself, while others write", func(_ Link, m *mutant) {
			var mu sync.Mutex
			n := 0
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				mu.Lock()
				n++
				lost := n%3 == 2
				mu.Unlock()
				if lost {
					since = math.MaxInt64
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
		{"Arm revives watches that were stopped", "arm in trouble", "does not fire watches that are stopped before or after it", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				if err := m.Session.Arm(ctx, since, targets...); err != nil {
					return err
				}
				for _, t := range targets {
					t.Watch.Fire(backend.LookAgain)
				}
				return nil
			}
		}},
		{"Arm checks its targets one by one", "arm in trouble", "refuses invalid targets, and arms nothing", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				if len(targets) == 0 {
					return backend.CheckTargets(targets)
				}
				for _, t := range targets {
					if err := m.Session.Arm(ctx, since, t); err != nil {
						return err
					}
				}
				return nil
			}
		}},
		{"an abandoned Arm arms", "arm in trouble", "leaves nothing armed when its context has ended", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				if err := m.Session.Arm(context.WithoutCancel(ctx), since, targets...); err != nil || ctx.Err() == nil {
					return err
				}
				return &backend.Error{Op: "arm", Path: targets[0].Path, Err: backend.ContextError(ctx)}
			}
		}},
		{"an Arm without contact forgets its watches", "arm in trouble", "waits for contact, and arms on the new one", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				if phase, _ := m.Session.Status(); phase == backend.PhaseSuspended {
					return m.Session.Sync(ctx, targets[0].Path)
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
		{"a break lets an Arm succeed without arming", "arm in trouble", "is repeated when its request or its reply is lost", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				_, changed := m.Session.Status()
				if err := m.Session.Sync(ctx, targets[0].Path); err != nil || isClosed(changed) {
					return err
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
		{"an Arm after the end fires", "arm in trouble", "fails when the session is over, and its watches stay silent", func(_ Link, m *mutant) {
			m.arm = func(ctx context.Context, since int64, targets []backend.Target) error {
				if m.Session.Err() != nil {
					targets[0].Watch.Fire(backend.LookAgain)
				}
				return m.Session.Arm(ctx, since, targets...)
			}
		}},
	}
}
