package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
)

// TestTx_OfManyHolders lets many holders follow each other. Each holder continues to write after the next one has begun. The ledger may
// have no write of an earlier holder after one of a later holder. Without Check, such writes are in the ledger.
func TestTx_OfManyHolders(t *testing.T) {
	each(t, func(d *database) {
		for _, level := range d.levels {
			d.t.Run(level.String(), func(t *testing.T) {
				d := newDatabase(t, d.kind)
				f := d.at(level)
				r := d.race(func(token int64, fn func(context.Context, *sql.Tx) error) error {
					return f.Tx(context.Background(), d.db, tokenOf(token), fn)
				})
				tokens := d.written()
				if !slices.IsSorted(tokens) {
					t.Errorf("a write of an earlier holder after one of a later holder: %v", tokens)
				}
				if n := int(r.applied.Load()); n != len(tokens) {
					t.Errorf("%d transactions were applied, and the ledger has %d", n, len(tokens))
				}
				if r.late.Load() != 0 || r.refused.Load() != int64(r.holders-1) {
					t.Errorf("%d late transactions; %d of %d holders were refused", r.late.Load(), r.refused.Load(), r.holders-1)
				}
				t.Logf("figure: %s, %v: %d holders, %d transactions applied, %d refused, %d run again",
					d.kind, level, r.holders, r.applied.Load(), r.refused.Load(), r.again.Load())
			})
		}
		d.t.Run("control", func(t *testing.T) {
			d := newDatabase(t, d.kind)
			r := d.race(func(_ int64, fn func(context.Context, *sql.Tx) error) error {
				tx, err := d.db.BeginTx(context.Background(), nil)
				if err != nil {
					return err
				}
				defer tx.Rollback()
				if err := fn(context.Background(), tx); err != nil {
					return err
				}
				return tx.Commit()
			})
			if r.late.Load() == 0 || slices.IsSorted(d.written()) {
				t.Errorf("without Check there are %d late writes, and the ledger is %v", r.late.Load(), d.written())
			}
		})
	})
}

// race is what has come of the transactions of some holders.
type race struct {
	holders                       int
	applied, late, refused, again atomic.Int64
}

// race lets each holder write until it is refused, or has written after the next one. The next one begins when it has
// written a few times.
func (d *database) race(run func(token int64, fn func(context.Context, *sql.Tx) error) error) *race {
	r := &race{holders: 6}
	writes := 4
	if long() {
		r.holders, writes = 50, 50
	}
	begin := make([]chan struct{}, r.holders+1)
	written := make([]atomic.Bool, r.holders+1)
	for i := range begin {
		begin[i] = make(chan struct{})
	}
	close(begin[0])
	var all sync.WaitGroup
	for i := range r.holders {
		all.Go(func() {
			<-begin[i]
			next := sync.OnceFunc(func() { close(begin[i+1]) })
			defer next()
			token := int64(i + 1)
			for done := 0; ; {
				late := written[i+1].Load()
				err := run(token, func(ctx context.Context, tx *sql.Tx) error { return d.write(ctx, tx, token) })
				switch {
				case err == nil:
					r.applied.Add(1)
					written[i].Store(true)
					if late {
						r.late.Add(1)
						return
					}
					if done++; done == writes {
						next()
						if i == r.holders-1 {
							return
						}
					}
				case errors.Is(err, coord.ErrFenced):
					r.refused.Add(1)
					return
				case again(err) || taken(err):
					r.again.Add(1)
				default:
					d.t.Errorf("token %d: %v", token, err)
					return
				}
			}
		})
	}
	all.Wait()
	return r
}

// taken reports whether two transactions without a fence have chosen one place in the ledger.
func taken(err error) bool {
	c := code(err)
	return c == "23505" || c == "1062" || c == "sqlite 1555"
}
