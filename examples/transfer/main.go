// Transfer moves money between two accounts that different processes keep, by a two-phase
// commit. A site that is killed between its vote and its booking books after a restart.
//
//	go run ./examples/transfer            # both sites and a transfer, in one process
//	go run ./examples/transfer -serve ann -amount 0 -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/transfer -serve bob -amount 0 -backend zookeeper -servers host1:2181,host2:2181
//	go run ./examples/transfer -serve "" -amount 30 -backend zookeeper -servers host1:2181,host2:2181
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
	"golang.org/x/sync/errgroup"
)

func main() {
	log.SetFlags(0)
	kind := flag.String("backend", "memory", "the service: memory, zookeeper, etcd or postgres")
	servers := flag.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`, or the connection string of -backend postgres")
	sites := flag.String("serve", "ann bob", "the `names` of the sites that this process serves; each begins with 100")
	amount := flag.Int("amount", 30, "transfer this `amount` from ann to bob; 0: none")
	flag.Parse()
	b, err := newBackend(*kind, *servers)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, b, strings.Fields(*sites), Transfer{From: "ann", To: "bob", Amount: *amount}); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// run serves the sites until ctx ends, and proposes the transfer.
func run(ctx context.Context, b backend.Backend, sites []string, t Transfer) error {
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/coord-examples/transfer"})
	if err != nil {
		return err
	}
	defer c.Close()
	g, ctx := errgroup.WithContext(ctx)
	for _, site := range sites {
		a := &account{balance: 100, pending: make(map[int64]int)}
		g.Go(func() error {
			return serve(ctx, c, site, a, func(context.Context) error {
				log.Printf("%s books", site)
				return nil
			})
		})
	}
	if t.Amount != 0 {
		g.Go(func() error { return propose(ctx, c, t) })
	}
	return g.Wait()
}

// propose makes one transfer.
func propose(ctx context.Context, c *coord.Client, t Transfer) error {
	office := coord.NewCoordinator[Transfer](c, "/transfers", nil)
	// After a crash, or any error, the same proposal again returns the decision: so a real program
	// stores the ID before it proposes.
	p := coord.Proposal[Transfer]{ID: rand.Text(), Sites: []string{t.From, t.To}, Payload: t}
	d, err := office.Propose(ctx, p)
	for errors.Is(err, coord.ErrNotFound) { // a site is not served yet
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		d, err = office.Propose(ctx, p)
	}
	if err != nil {
		return err
	}
	if d.Commit {
		log.Printf("%d from %s to %s: committed", t.Amount, t.From, t.To)
	} else {
		log.Printf("%d from %s to %s: aborted by %s: %s", t.Amount, t.From, t.To, d.By, d.Reason)
	}
	return nil
}

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

// newBackend returns the service that the flags name. A service in memory serves this process only.
func newBackend(kind, servers string) (backend.Backend, error) {
	list := strings.Split(servers, ",")
	switch kind {
	case "memory":
		return memory.New(nil), nil
	case "zookeeper":
		return zookeeper.New(list, nil), nil
	case "etcd":
		return etcd.New(list, nil), nil
	case "postgres":
		return postgres.New(servers, nil), nil
	}
	return nil, fmt.Errorf("-backend %q: want memory, zookeeper, etcd or postgres", kind)
}
