// Transfer moves money between two accounts that different processes keep, by a two-phase
// commit. One of them is killed between its vote and its booking, and books after a restart.
// Then the proposer is killed, and another one makes the same proposal again: the sum of the
// accounts stays the same.
//
//	go run ./examples/transfer
//	go run ./examples/transfer -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/transfer -backend etcd -servers host1:2379,host2:2379
package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

func main() { service.Main("transfer", story) }

// Transfer is the payload on which the sites vote.
type Transfer struct {
	From, To string
	Amount   int
}

// booking returns the change of one account by a transfer.
func (t Transfer) booking(site string) int {
	if site == t.From {
		return -t.Amount
	}
	return t.Amount
}

// An account represents the database of a site: it outlives the process, and each method is
// one transaction of it. A transfer is identified by its Zxid, which no other transaction
// ever has.
//
// Every method can be repeated for the same transfer, for example after a crash, and then
// does nothing.
type account struct {
	mu      sync.Mutex
	balance int           // money that can be spent
	pending map[int64]int // voted yes, without a known decision
}

// prepare makes sure that the transfer can be booked later, whatever happens.
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

// commit books a prepared transfer.
func (a *account) commit(zxid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if amount := a.pending[zxid]; amount > 0 {
		a.balance += amount
	}
	delete(a.pending, zxid)
}

// abort undoes prepare, if it was called.
func (a *account) abort(zxid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if amount := a.pending[zxid]; amount < 0 {
		a.balance -= amount
	}
	delete(a.pending, zxid)
}

// serve serves a site until ctx ends. booking is called before each booking.
func serve(ctx context.Context, c *coord.Client, site string, a *account, booking func(context.Context) error) error {
	p := coord.NewParticipant(c, "/transfers", site, coord.Handler[Transfer]{
		Prepare: func(_ context.Context, tx coord.Branch[Transfer]) error {
			return a.prepare(tx.Zxid, tx.Payload.booking(site)) // nil is a yes, and binding
		},
		Commit: func(ctx context.Context, tx coord.Branch[Transfer]) error {
			if err := booking(ctx); err != nil {
				return err // it is called again
			}
			a.commit(tx.Zxid)
			return nil
		},
		Abort: func(_ context.Context, tx coord.Branch[Transfer]) error {
			a.abort(tx.Zxid)
			return nil
		},
	})
	return p.Serve(ctx)
}
