// Transfer moves money between two accounts that different processes keep, by a
// two-phase commit. One of them is killed between its vote and its booking, and
// books when it is started again. Then the one who proposes is killed, and another
// proposes the same again: money is neither lost nor made.
//
//	go run ./examples/transfer
//	go run ./examples/transfer -backend zookeeper -servers host1:2181,host2:2181
package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("transfer", story) }

// Transfer is what the sites vote on.
type Transfer struct {
	From, To string
	Amount   int
}

// booking is what a transfer does to one account.
func (t Transfer) booking(site string) int {
	if site == t.From {
		return -t.Amount
	}
	return t.Amount
}

// An account stands for the database of a site: it outlives the process, and each
// method is one transaction of it. A transfer goes by its Zxid, which no other
// transaction ever has.
//
// Every method can be called again for the same transfer, after a crash for example,
// and does nothing then.
type account struct {
	mu      sync.Mutex
	balance int           // what can be spent
	pending map[int64]int // voted yes, and not decided yet as far as we know
}

// prepare makes sure that the transfer can be booked later, whatever comes.
func (a *account) prepare(zxid int64, amount int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, again := a.pending[zxid]; again {
		return nil
	}
	if a.balance+amount < 0 {
		return fmt.Errorf("%d is not enough for %d", a.balance, -amount)
	}
	if amount < 0 {
		a.balance += amount // set aside
	}
	a.pending[zxid] = amount
	return nil
}

// commit books what was prepared.
func (a *account) commit(zxid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if amount := a.pending[zxid]; amount > 0 {
		a.balance += amount
	}
	delete(a.pending, zxid)
}

// abort undoes what was prepared, if anything was.
func (a *account) abort(zxid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if amount := a.pending[zxid]; amount < 0 {
		a.balance -= amount
	}
	delete(a.pending, zxid)
}

// serve takes part in transfers in the name of a site until ctx ends. booking is
// called before each booking.
func serve(ctx context.Context, c *coord.Client, site string, a *account, booking func(context.Context) error) error {
	p := coord.NewParticipant(c, "/transfers", site, coord.Handler[Transfer]{
		Prepare: func(_ context.Context, tx coord.Ballot[Transfer]) error {
			return a.prepare(tx.Zxid, tx.Payload.booking(site)) // nil is a yes, and binds us
		},
		Commit: func(ctx context.Context, tx coord.Ballot[Transfer]) error {
			if err := booking(ctx); err != nil {
				return err // it is called again
			}
			a.commit(tx.Zxid)
			return nil
		},
		Abort: func(_ context.Context, tx coord.Ballot[Transfer]) error {
			a.abort(tx.Zxid)
			return nil
		},
	})
	return p.Serve(ctx)
}
