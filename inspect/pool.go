package inspect

import (
	"context"
	"slices"
	"sync"

	"github.com/go-coord/coord/backend"
	"golang.org/x/sync/errgroup"
)

// A pool is a session that several inspectors use at the same time. If the service has batches, the
// pool collects their reads until every inspector waits for one, and makes them together. So the
// number of requests grows with the steps of the longest description, and not with the number of
// inspectors.
type pool struct {
	backend.Session

	mu     sync.Mutex
	active int // inspectors that have not ended
	asked  []*ask
}

// An ask is the reads of one inspector.
type ask struct {
	reads   []backend.Read
	results []backend.ReadResult
	err     error
	done    chan struct{}
}

const (
	mostInspectors = 256 // at the same time
	mostPooled     = 128 // reads in one call of ReadMany
	poolsAtOnce    = 4   // such calls under way
)

// each calls f for the numbers below n, for many of them at the same time.
func (p *pool) each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	for first := 0; first < n; first += mostInspectors {
		last := min(n, first+mostInspectors)
		p.begin(last - first)
		all, ctx := errgroup.WithContext(ctx)
		for i := first; i < last; i++ {
			all.Go(func() error {
				defer p.end(ctx)
				return f(ctx, i)
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// begin sets the number of inspectors before the first of them starts. Otherwise the first one
// would not wait for the others.
func (p *pool) begin(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active = n
}

// end removes an inspector that has ended. The others may all be waiting for a read.
func (p *pool) end(ctx context.Context) {
	p.mu.Lock()
	p.active--
	asked := p.takeLocked()
	p.mu.Unlock()
	p.read(ctx, asked)
}

// takeLocked returns the asks if every inspector waits for one.
func (p *pool) takeLocked() []*ask {
	if len(p.asked) < p.active {
		return nil
	}
	asked := p.asked
	p.asked = nil
	return asked
}

// Get is Get of the session, for a caller that is an inspector of the pool.
func (p *pool) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	if w != nil || !p.Features().Has(backend.Batches) {
		return p.Session.Get(ctx, path, w)
	}
	got, err := p.ReadMany(ctx, backend.Read{Path: path})
	if err != nil {
		return nil, backend.Stat{}, err
	}
	return got[0].Data, got[0].Stat, got[0].Err
}

// ReadMany is ReadMany of the session, for a caller that is an inspector of the pool.
func (p *pool) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	if !p.Features().Has(backend.Batches) {
		return p.Session.ReadMany(ctx, reads...)
	}
	a := &ask{reads: reads, done: make(chan struct{})}
	p.mu.Lock()
	p.asked = append(p.asked, a)
	asked := p.takeLocked()
	p.mu.Unlock()
	p.read(ctx, asked)
	select {
	case <-a.done:
		return a.results, a.err
	case <-ctx.Done():
		return nil, backend.ContextError(ctx)
	}
}

// read answers asks. A path that the service refuses gets its error here: the session would
// refuse all reads of the call.
func (p *pool) read(ctx context.Context, asked []*ask) {
	var reads []backend.Read
	var places []*backend.ReadResult
	for _, a := range asked {
		a.results = make([]backend.ReadResult, len(a.reads))
		for i, r := range a.reads {
			if err := p.CheckPath(r.Path); err != nil {
				a.results[i].Err = err
				continue
			}
			reads, places = append(reads, r), append(places, &a.results[i])
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(poolsAtOnce)
	for chunk := range slices.Chunk(reads, mostPooled) {
		to := places[:len(chunk)]
		places = places[len(chunk):]
		all.Go(func() error {
			results, err := p.Session.ReadMany(ctx, chunk...)
			for i := range results {
				*to[i] = results[i]
			}
			return err
		})
	}
	err := all.Wait()
	for _, a := range asked {
		a.err = err
		close(a.done)
	}
}
