package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/fence"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// through returns a proxy for the server, and a pool of connections through it.
func (d *database) through() (*zkproxy.Proxy, *sql.DB) {
	d.t.Helper()
	var target string
	switch d.kind {
	case "postgres":
		target = postgres.Get(d.t).Addr()
	case "mariadb":
		target = maria.socket()
	}
	p, err := zkproxy.NewRaw(target)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { p.Close() })
	own := *d
	own.dsn = pgtest.URL(p.Addr(), "")
	if d.kind == "mariadb" {
		own.dsn = "root@tcp(" + p.Addr() + ")/fence"
	}
	return p, own.open("")
}

// A COMMIT whose reply is lost is applied, and one that is lost itself is not. Tx cannot know which. Once can: a repetition under the same ID, by the
// holder or by the next one, applies it once.
func TestTx_WhoseCommitLosesItsReply(t *testing.T) {
	for name, x := range map[string]struct {
		applied bool // the reply is lost, not the COMMIT
		next    bool // the next holder repeats it
	}{"reply": {true, false}, "reply, next holder": {true, true}, "request": {false, false}, "request, next holder": {false, true}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(d *database) {
				if d.kind == "sqlite" {
					d.t.Skip("it has no connection to lose")
				}
				commitWithoutReply(d, x.applied, x.next)
			})
		})
	}
}

func commitWithoutReply(d *database, applied, next bool) {
	p, db := d.through()
	h, _ := lock(d.t)
	runs := 0
	pay := func(token fence.Token, arm func()) error {
		return d.f.Tx(d.t.Context(), db, token, func(ctx context.Context, tx *sql.Tx) error {
			first, err := d.f.Once(ctx, tx, "payment")
			if err != nil || !first {
				return err
			}
			runs++
			if err := d.write(ctx, tx, h.Token()); err != nil {
				return err
			}
			arm()
			return nil
		})
	}
	armed, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- pay(fence.Of(h), func() {
			if applied {
				p.BlackholeDown(true)
			} else {
				p.Cut()
			}
			close(armed)
		})
	}()
	select {
	case <-armed:
	case err := <-done:
		d.t.Fatal(err)
	}
	if applied {
		for deadline := time.Now().Add(coordtest.Limit); len(d.written()) == 0; {
			if time.Now().After(deadline) {
				d.t.Fatal("the COMMIT is not applied")
			}
		}
		p.BlackholeDown(false) // which ends the connection
	}
	err := <-done
	wantErr(d.t, err, coord.ErrUncertain)
	if again(err) || errors.Is(err, coord.ErrLost) {
		d.t.Errorf("error %v", err)
	}
	if first, err := d.once("payment", (*sql.Tx).Rollback); first == applied || err != nil {
		d.t.Errorf("applied: %t, but first: %t, %v", applied, first, err)
	}
	token := fence.Of(h)
	if next {
		token = fence.Token{Path: h.Path(), Number: h.Token() + 1}
	}
	for range 2 {
		if err := pay(token, func() {}); err != nil {
			d.t.Errorf("the repetition: %v", err)
		}
	}
	d.wantWritten(h.Token())
	if want := map[bool]int{true: 1, false: 2}[applied]; runs != want {
		d.t.Errorf("the function has written %d times, want %d", runs, want)
	}
}
