package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// once runs one transaction that writes if it is the first for an item.
func (d *database) once(item string, end func(*sql.Tx) error) (bool, error) {
	tx, err := d.db.Begin()
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	first, err := d.f.Once(context.Background(), tx, item)
	if err == nil && first {
		err = d.write(context.Background(), tx, 1)
	}
	if err != nil {
		return false, err
	}
	return first, end(tx)
}

func TestOnce_IsTrueOnce(t *testing.T) {
	each(t, func(d *database) {
		for _, x := range []struct {
			item  string
			end   func(*sql.Tx) error
			first bool
		}{
			{"a", (*sql.Tx).Rollback, true},
			{"a", (*sql.Tx).Commit, true},
			{"a", (*sql.Tx).Commit, false},
			{"A", (*sql.Tx).Commit, true},
			{"a ", (*sql.Tx).Commit, true},
			{strings.Repeat("x", 255), (*sql.Tx).Commit, true},
		} {
			if first, err := d.once(x.item, x.end); first != x.first || err != nil {
				d.t.Errorf("%q: %t, %v, want %t", x.item, first, err, x.first)
			}
		}
		for _, item := range []string{"", strings.Repeat("x", 256), "a\x00", "\xff"} {
			if _, err := d.once(item, (*sql.Tx).Commit); !errors.Is(err, coord.ErrInvalid) {
				d.t.Errorf("%q: %v", item, err)
			}
		}
		d.wantWritten(1, 1, 1, 1)
	})
}

func TestOnce_ByManyAtOnce(t *testing.T) {
	each(t, func(d *database) {
		var firsts, runs atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for {
					runs.Add(1)
					first, err := d.once("item", (*sql.Tx).Commit)
					if err == nil {
						if first {
							firsts.Add(1)
						}
						return
					}
					if !again(err) {
						d.t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if firsts.Load() != 1 {
			d.t.Errorf("%d transactions were the first", firsts.Load())
		}
		d.wantWritten(1)
	})
}

func TestPrune_DeletesByAge(t *testing.T) {
	each(t, func(d *database) {
		for _, item := range []string{"old", "new"} {
			if _, err := d.once(item, (*sql.Tx).Commit); err != nil {
				d.t.Fatal(err)
			}
		}
		d.exec(d.db, "UPDATE "+d.tables.ItemTable+" SET seen = seen - 3600 WHERE id = 'old'")
		for _, x := range []struct {
			age  time.Duration
			want int64
		}{{2 * time.Hour, 0}, {time.Hour - 30*time.Second, 1}, {time.Hour - 30*time.Second, 0}} {
			if n, err := d.f.Prune(d.t.Context(), d.db, x.age); n != x.want || err != nil {
				d.t.Errorf("older than %v: %d, %v, want %d", x.age, n, err, x.want)
			}
		}
		for _, x := range []struct {
			item  string
			first bool
		}{{"old", true}, {"new", false}} {
			if first, err := d.once(x.item, (*sql.Tx).Commit); first != x.first || err != nil {
				d.t.Errorf("%s: %t, %v, want %t", x.item, first, err, x.first)
			}
		}
		for _, age := range []time.Duration{0, -time.Hour, time.Millisecond} {
			_, err := d.f.Prune(d.t.Context(), d.db, age)
			wantErr(d.t, err, coord.ErrInvalid)
		}
	})
}
