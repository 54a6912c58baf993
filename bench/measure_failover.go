package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
)

// failoverTimeout is the session timeout of clients that are killed.
const failoverTimeout = 2 * time.Second

// failoverGroup measures how long a lock is unusable after its holder, or the leading server,
// has died.
func failoverGroup(e *env, rivals []rival, p *peers) *group {
	g := &group{
		name: "failover",
		about: fmt.Sprintf("The holder is cut off, as when its machine dies: the time until the next waiter has the lock, which is the time until the service ends a session of %v. ", failoverTimeout) +
			"The leading server is killed: the time until a client of it has acquired and released a lock again; the benchmark repeats calls that return an error.",
		shown: []metric{mTime, mTimeouts},
	}
	for _, r := range rivals {
		g.add("the holder dies", r.who(), r.where(), 3*time.Second, func(ctx context.Context) (sample, error) {
			holder, err := newDistantPlace(e.root, e.addrs, 0)
			if err != nil {
				return nil, err
			}
			defer holder.Close()
			heir, err := newDistantPlace(e.root, e.addrs, 0)
			if err != nil {
				return nil, err
			}
			defer heir.Close()
			took, err := r.failover(ctx, holder, heir, e.root+e.path(), failoverTimeout, func() {
				holder.partition()
				if p.etcd != nil {
					p.etcd.cut(holder)
				}
			})
			if err != nil {
				return nil, err
			}
			return sample{mTime: millis(took), mTimeouts: float64(took) / float64(failoverTimeout)}, nil
		})
	}
	if e.ensemble == nil {
		return g
	}
	whos := []string{byCoord}
	if p.all != nil {
		whos = append(whos, byGoZK)
	}
	for _, who := range whos {
		g.add("the leading server dies", who, onZooKeeper, 6*time.Second, func(ctx context.Context) (sample, error) {
			return e.leaderDies(ctx, who)
		})
	}
	return g
}

// openEverywhere opens a client that knows all servers, and returns a function that acquires
// and releases a lock once.
func (e *env) openEverywhere(ctx context.Context, who, path string) (step, func() error, error) {
	const timeout = 10 * time.Second
	if who == byGoZK {
		c, err := dialRaw(ctx, e.addrs, timeout)
		if err != nil {
			return nil, nil, err
		}
		n := 0
		return func(context.Context) error {
			// A new client each time: after an error the old one may believe that it has the
			// lock, or have left a node for which it would wait for ever.
			n++
			l := zk.NewLock(c, fmt.Sprintf("%s-%d", path, n), zk.WorldACL(zk.PermAll))
			if err := l.Lock(); err != nil {
				return err
			}
			return l.Unlock()
		}, func() error { c.Close(); return nil }, nil
	}
	c, err := coord.Open(ctx, zookeeper.New(e.addrs, &zookeeper.Options{SessionTimeout: timeout}), nil)
	if err != nil {
		return nil, nil, err
	}
	m := coord.NewMutex(c, path, nil)
	return func(ctx context.Context) error {
		h, err := m.Lock(ctx)
		if err != nil {
			return err
		}
		return h.Release()
	}, c.Close, nil
}

func (e *env) leaderDies(ctx context.Context, who string) (_ sample, err error) {
	cycle, end, err := e.openEverywhere(ctx, who, e.root+e.path())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := cycle(ctx); err != nil {
		return nil, err
	}
	leader, err := e.ensemble.Leader(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	leader.Kill()
	// Some libraries answer the loss of the server with an error. The time counts until the
	// lock is usable again, within a limit that is long enough for the service.
	limit := began.Add(30 * time.Second)
	for err = cycle(ctx); err != nil && time.Now().Before(limit); err = cycle(ctx) {
		if serr := sleep(ctx, 10*time.Millisecond); serr != nil {
			return nil, serr
		}
	}
	took := time.Since(began)
	if lerr := leader.Restart(ctx); lerr != nil {
		return nil, lerr
	}
	return sample{mTime: millis(took)}, err
}
