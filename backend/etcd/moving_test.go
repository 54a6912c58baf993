package etcd_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
)

// The functions in this file stand in docs/moving.md as they are here, which internal/readme checks.

func lockBefore(ctx context.Context, cli *clientv3.Client, build func(context.Context) string) error {
	s, err := concurrency.NewSession(cli, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer s.Close()
	m := concurrency.NewMutex(s, "/locks/report")
	if err := m.Lock(ctx); err != nil {
		return err
	}
	defer m.Unlock(context.WithoutCancel(ctx))
	report := build(ctx) // s.Done() can come after the loss of the lock
	r, err := cli.Txn(ctx).If(m.IsOwner()).Then(clientv3.OpPut("/reports/latest", report)).Commit()
	if err == nil && !r.Succeeded {
		err = errors.New("the lock is lost")
	}
	return err
}

func lockAfter(ctx context.Context, c *coord.Client, build func(context.Context) string) error {
	m := coord.NewMutex(c, "/locks/report", nil)
	latest := coord.NewValue[string](c, "/reports/latest", nil)
	return m.Do(ctx, func(ctx context.Context, h *coord.Hold) error {
		report := build(ctx) // ctx ends with the lease of the client, which is shorter than that of the servers
		_, err := coord.NewTxn(c).Under(h.Guard()).Add(latest.SetOp(report)).Commit(ctx)
		return err
	})
}

func leadBefore(ctx context.Context, cli *clientv3.Client, lead func(context.Context)) error {
	for ctx.Err() == nil {
		s, err := concurrency.NewSession(cli, concurrency.WithTTL(10))
		if err != nil {
			return err
		}
		e := concurrency.NewElection(s, "/leader")
		if err := e.Campaign(ctx, "node-a"); err != nil {
			s.Close()
			return err
		}
		term, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(s.Ctx(), cancel) // the session ends with its lease
		lead(term)
		stop()
		cancel()
		e.Resign(context.WithoutCancel(ctx))
		s.Close()
	}
	return ctx.Err()
}

func leadAfter(ctx context.Context, c *coord.Client, lead func(context.Context)) error {
	e := coord.NewElection(c, "/leader", &coord.ElectionOptions{ID: "node-a"})
	for ctx.Err() == nil {
		err := e.Run(ctx, func(term context.Context, _ *coord.Term) error {
			lead(term)
			return nil // resigns; after a loss Run campaigns again
		})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func countBefore(ctx context.Context, cli *clientv3.Client) error {
	_, err := concurrency.NewSTM(cli, func(stm concurrency.STM) error {
		n, _ := strconv.Atoi(stm.Get("/visits"))
		stm.Put("/visits", strconv.Itoa(n+1))
		return nil
	}, concurrency.WithAbortContext(ctx))
	return err // after a lost reply the addition may or may not have been applied
}

func countAfter(ctx context.Context, c *coord.Client) error {
	_, err := coord.NewCounter(c, "/visits").Add(ctx, 1)
	return err // coord.ErrUncertain only if the session has ended too
}

func bothLocks(ctx context.Context, s *concurrency.Session, c *coord.Client, work func(context.Context, *coord.Hold) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.Ctx(), cancel)()      // the work also ends if the old lock is lost
	old := concurrency.NewMutex(s, "/locks/report") // first in all processes
	if err := old.Lock(ctx); err != nil {
		return err
	}
	defer old.Unlock(context.WithoutCancel(ctx))
	return coord.NewMutex(c, "/locks/report", nil).Do(ctx, work)
}

// Before and after do the same.
func TestMovingFromConcurrency(t *testing.T) {
	t.Parallel()
	addr := shared.get(t)
	ctx := t.Context()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	keys := fresh("before") // in which the old program has the tree for itself
	cli.KV, cli.Watcher, cli.Lease = namespace.NewKV(cli.KV, keys), namespace.NewWatcher(cli.Watcher, keys), namespace.NewLease(cli.Lease, keys)
	c, err := coord.Open(ctx, etcd.New([]string{addr}, &etcd.Options{Prefix: fresh("moving")}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	build := func(context.Context) string { return "all is well" }
	if err := errors.Join(lockBefore(ctx, cli, build), lockAfter(ctx, c, build)); err != nil {
		t.Fatal(err)
	}
	r, err := cli.Get(ctx, "/reports/latest")
	if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "all is well" {
		t.Errorf("before: %v, %v", r, err)
	}
	if v, err := coord.NewValue[string](c, "/reports/latest", nil).Get(ctx); err != nil || v.Value != "all is well" {
		t.Errorf("after: %+v, %v", v, err)
	}
	for name, campaign := range map[string]func(ctx context.Context, lead func(context.Context)) error{
		"before": func(ctx context.Context, lead func(context.Context)) error { return leadBefore(ctx, cli, lead) },
		"after":  func(ctx context.Context, lead func(context.Context)) error { return leadAfter(ctx, c, lead) },
	} {
		ctx, cancel := context.WithCancel(ctx)
		terms := 0
		err := campaign(ctx, func(context.Context) {
			if terms++; terms == 2 {
				cancel()
			}
		})
		if !errors.Is(err, context.Canceled) || terms != 2 {
			t.Errorf("%s: %d terms, %v", name, terms, err)
		}
		cancel()
	}
	for range 3 {
		if err := errors.Join(countBefore(ctx, cli), countAfter(ctx, c)); err != nil {
			t.Fatal(err)
		}
	}
	r, err = cli.Get(ctx, "/visits")
	if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "3" {
		t.Errorf("before: %v, %v", r, err)
	}
	if n, err := coord.NewCounter(c, "/visits").Get(ctx); n != 3 || err != nil {
		t.Errorf("after: %d, %v", n, err)
	}
	s, err := concurrency.NewSession(cli)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	held := false
	err = bothLocks(ctx, s, c, func(ctx context.Context, h *coord.Hold) error {
		held = h.Err() == nil
		s.Orphan() // ends the old session as a lost lease does
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Minute):
			return errors.New("the work goes on after the loss of the old lock")
		}
	})
	if err != nil || !held {
		t.Errorf("both locks: held %v, %v", held, err)
	}
}
