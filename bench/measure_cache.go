package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

const (
	whatSync    = "sync"
	whatChanges = "changes, without a cache"
)

const (
	// mostChanges is the number of nodes of a large tree that are changed.
	mostChanges = 10_000
	// mostTraced is the size of the largest tree of which kazoo's memory is traced, which
	// makes kazoo slow.
	mostTraced = 10_000
)

// cacheGroup measures the first copy of a subtree in a cache, and how a cache follows changes.
func cacheGroup(e *env, p *peers, sizes []int) *group {
	g := &group{
		name: "caches",
		about: "A cache of a subtree of that many nodes of 100 bytes, in directories of 100. ms and server requests are those of the first copy; each peer has a new session, whose connect counts as a request. " +
			"Curator's cache is TreeCache. Bytes are heap for a node with its data: of Go and Java after a collection, of Python in a second cache by tracemalloc, up to 10,000 nodes. " +
			"Then another client changes up to 10,000 nodes once, in commits of 100 that it does not wait for: the changes a second until the cache has seen each; " +
			"without a cache, until all are committed.",
		shown: []metric{mTime, mPackets, mMemory, mRate},
	}
	for _, n := range sizes {
		for _, at := range []*place{e.memory, e.direct} {
			t := &tree{n: n, p: at}
			add := func(what, who string, perNode time.Duration, run func(ctx context.Context) (sample, error)) {
				g.add(what, who, at.where, time.Second+time.Duration(n)*perNode, run).at("nodes", float64(n))
			}
			add(whatSync, byCoord, 50*time.Microsecond, func(ctx context.Context) (sample, error) {
				return t.measure(ctx, e, &ownCache{p: at})
			})
			if at == e.memory {
				continue
			}
			add(whatChanges, byCoord, 20*time.Microsecond, func(ctx context.Context) (sample, error) {
				if _, _, err := t.get(ctx, e); err != nil {
					return nil, err
				}
				return t.changes(ctx, e, nil)
			})
			if f := p.curator; f != nil {
				add(whatSync, byCurator, 200*time.Microsecond, func(ctx context.Context) (sample, error) {
					return t.measure(ctx, e, &foreignCache{f, at, "tree"})
				})
				add(whatSync, byNewer, 200*time.Microsecond, func(ctx context.Context) (sample, error) {
					return t.measure(ctx, e, &foreignCache{f, at, "curator"})
				})
			}
			if f := p.kazoo; f != nil {
				add(whatSync, byKazoo, 600*time.Microsecond, func(ctx context.Context) (sample, error) {
					s, err := t.measure(ctx, e, &foreignCache{f, at, "tree"})
					if err != nil || n > mostTraced {
						return s, err
					}
					traced, err := t.measure(ctx, e, &foreignCache{f, at, "traced"})
					if err != nil {
						return nil, err
					}
					s[mMemory] = traced[mMemory]
					return s, nil
				})
			}
		}
	}
	return g
}

// A cached is a cache to measure.
type cached interface {
	// open starts the cache, and returns when it has the subtree at an absolute path.
	open(ctx context.Context, path string) (took time.Duration, nodes int, err error)
	// ready is called before the nodes are changed.
	ready(ctx context.Context) error
	// seen returns when the cache has seen n changes of data.
	seen(ctx context.Context, n int) error
	// heap returns the bytes in use of the process of the cache, or 0 if it is not known.
	heap(ctx context.Context) (float64, error)
	close(ctx context.Context) error
}

// measure runs a cache of the tree, and then changes the tree.
func (t *tree) measure(ctx context.Context, e *env, x cached) (_ sample, err error) {
	_, path, err := t.get(ctx, e)
	if err != nil {
		return nil, err
	}
	before, err := x.heap(ctx)
	if err != nil {
		return nil, err
	}
	metered := startMeter(e.metered(ctx, t.p.where))
	took, nodes, err := x.open(ctx, t.p.root+path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.close(ctx)) }()
	s := sample{mTime: millis(took)}
	metered(s, 1)
	if nodes != t.n+1 {
		return nil, fmt.Errorf("the cache has %d nodes, want %d", nodes, t.n+1)
	}
	after, err := x.heap(ctx)
	if err != nil {
		return nil, err
	}
	// A node holds its data at least: a smaller difference is not that of the cache.
	if held := (after - before) / float64(nodes); held >= float64(len(payload)) {
		s[mMemory] = held
	}
	changes, err := t.changes(ctx, e, x)
	if err != nil {
		return nil, err
	}
	s[mRate] = changes[mRate]
	return s, nil
}

// changes changes each node once, up to mostChanges. It measures the time until x, unless
// nil, has seen all changes.
func (t *tree) changes(ctx context.Context, e *env, x cached) (sample, error) {
	// The client of the cache is the first one, on another server.
	clients, err := t.p.coords(ctx, 2)
	if err != nil {
		return nil, err
	}
	s, err := clients[1].Session(ctx)
	if err != nil {
		return nil, err
	}
	if x != nil {
		if err := x.ready(ctx); err != nil {
			return nil, err
		}
	}
	n := min(t.n, mostChanges)
	data := fmt.Appendf(nil, "%-*s", len(payload), e.path())
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	wrote := make(chan error, 1)
	go func() {
		err := atOnce((n+wide-1)/wide, func(d int) error {
			var ops []backend.Op
			for _, path := range t.directory(d) {
				ops = append(ops, backend.SetData(path, data, backend.AnyVersion))
			}
			_, err := s.Commit(ctx, ops...)
			return err
		})
		if err != nil {
			cancel(err)
		}
		wrote <- err
	}()
	if x != nil {
		err = x.seen(ctx, n)
	}
	err = errors.Join(err, <-wrote)
	if err != nil {
		return nil, err
	}
	return sample{mRate: float64(n) / time.Since(began).Seconds()}, nil
}

// ownCache is coord's Cache.
type ownCache struct {
	p       *place
	cache   *coord.Cache
	end     context.CancelFunc
	ended   chan error
	changed chan int // numbers of changes
	done    sync.WaitGroup
}

func (x *ownCache) open(ctx context.Context, path string) (time.Duration, int, error) {
	c, err := x.p.client(ctx)
	if err != nil {
		return 0, 0, err
	}
	life, end := context.WithCancel(ctx)
	x.end, x.ended = end, make(chan error, 1)
	x.cache = coord.NewCache(c, path[len(x.p.root):], nil)
	began := time.Now()
	go func() { x.ended <- x.cache.Run(life) }()
	select {
	case <-x.cache.Synced():
		return time.Since(began), x.cache.Len(), nil
	case err := <-x.ended:
		end()
		return 0, 0, fmt.Errorf("the cache ended: %w", err)
	}
}

// ready begins to read the events. The first batch is the copy.
func (x *ownCache) ready(ctx context.Context) error {
	life, end := context.WithCancel(ctx)
	endCache := x.end
	x.end = func() { end(); endCache() }
	x.changed = make(chan int)
	x.done.Go(func() {
		for batch, err := range x.cache.Events(life) {
			if err != nil {
				return
			}
			n := 0
			for _, e := range batch {
				if e.Kind == coord.NodeChanged {
					n++
				}
			}
			select {
			case x.changed <- n:
			case <-life.Done():
			}
		}
	})
	return x.seen(ctx, 0)
}

// seen receives at least one batch.
func (x *ownCache) seen(ctx context.Context, n int) error {
	for {
		select {
		case k := <-x.changed:
			if n -= k; n <= 0 {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (x *ownCache) heap(context.Context) (float64, error) {
	return float64(collected().HeapAlloc), nil
}

func (x *ownCache) close(context.Context) error {
	x.end()
	x.done.Wait()
	<-x.ended
	return nil
}

// foreignCache is a cache of a peer.
type foreignCache struct {
	f    *foreign
	p    *place
	kind string // tree, curator or traced
}

func (x *foreignCache) open(ctx context.Context, path string) (time.Duration, int, error) {
	figures, err := x.f.ask(ctx, "cache", servers(x.p), path, x.kind)
	if err != nil {
		return 0, 0, err
	}
	if len(figures) != 2 {
		return 0, 0, errNoFigures
	}
	return time.Duration(figures[0]), int(figures[1]), nil
}

// ready has nothing to do: a peer counts changes from the first copy on.
func (x *foreignCache) ready(context.Context) error { return nil }

func (x *foreignCache) seen(ctx context.Context, n int) error {
	_, err := x.f.ask(ctx, "seen", n)
	return err
}

func (x *foreignCache) heap(ctx context.Context) (float64, error) {
	figures, err := x.f.ask(ctx, "heap")
	if err != nil {
		return 0, err
	}
	if len(figures) != 1 {
		return 0, errNoFigures
	}
	return figures[0], nil
}

func (x *foreignCache) close(ctx context.Context) error {
	_, err := x.f.ask(ctx, "uncache")
	return err
}

// A tree is made once for all rounds.
type tree struct {
	n    int
	p    *place
	once sync.Once
	c    *coord.Client
	path string
	err  error
}

func (t *tree) get(ctx context.Context, e *env) (*coord.Client, string, error) {
	t.once.Do(func() {
		if t.c, t.err = t.p.client(ctx); t.err != nil {
			return
		}
		t.path = e.path()
		t.err = t.grow(ctx)
	})
	return t.c, t.path, t.err
}

// grow makes the root, and directories with n nodes below it.
func (t *tree) grow(ctx context.Context) error {
	s, err := t.c.Session(ctx)
	if err != nil {
		return err
	}
	// The namespace may not exist yet on memory.
	v := coord.NewValue(t.c, t.path, &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, payload); err != nil {
		return err
	}
	return atOnce((t.n+wide-1)/wide, func(d int) error {
		var ops []backend.Op
		for _, path := range t.directory(d) {
			ops = append(ops, backend.Create(path, []byte(payload), backend.Persistent))
		}
		_, err := s.Commit(ctx, ops...)
		return err
	})
}

// wide is the number of nodes in a directory, which is one of them.
const wide = 100

// directory returns the paths of the nodes of a directory, itself first.
func (t *tree) directory(d int) []string {
	dir := fmt.Sprintf("%s%s/d%03d", t.p.root, t.path, d)
	paths := []string{dir}
	for i := 1; i < min(wide, t.n-d*wide); i++ {
		paths = append(paths, fmt.Sprintf("%s/n%03d", dir, i))
	}
	return paths
}
