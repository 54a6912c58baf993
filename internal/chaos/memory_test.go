//go:build linux

package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/fence"
	"github.com/go-coord/coord/internal/itemlog"
	"github.com/go-coord/coord/internal/zklog"
)

// onMemory is a run of one workload by three clients, on memory and with fake time: sessions end, and
// contact breaks for longer than the session timeout. Then no more faults happen, the clients have to finish, and settled is called. The
// workload ends with its context. It returns the histories.
func onMemory(t *testing.T, work func(ctx context.Context, x *client), settled func(ctx context.Context, all []*client)) []*process {
	t.Helper()
	dir := t.TempDir()
	socket := newResource(t, dir)
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(&memory.Options{SessionTimeout: sessionTimeout})
		nemesis := recorderAt(t, dir, "nemesis")
		var all []*client
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		for i := range 3 {
			x := newClient()
			x.spec = clientSpec{Name: fmt.Sprintf("client%d.1", i), Index: i, Resource: socket, Seed: uint64(i), Slowness: 1}
			x.rec = recorderAt(t, dir, x.spec.Name)
			link := store.Link(x.spec.Name)
			link.SetLatency(time.Millisecond)
			var err error
			if x.c, err = coord.Open(t.Context(), counting{link, x}, nil); err != nil {
				t.Fatal(err)
			}
			all = append(all, x)
			done.Go(func() { work(ctx, x) })
		}
		for i := range 24 {
			x := all[i%3]
			link := store.Link(x.spec.Name)
			time.Sleep(700 * time.Millisecond)
			if i%4 == 0 {
				link.Partition()
				time.Sleep(sessionTimeout * 5 / 2)
				link.Heal()
				continue
			}
			s, err := x.c.Session(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			nemesis.say(event{Kind: "expire", Work: "fault", Session: s.ID()})
			link.Expire(s.ID())
		}
		for _, x := range all {
			x.finish.Store(true)
		}
		time.Sleep(3 * sessionTimeout)
		settled(ctx, all)
		stop()
		done.Wait()
		for _, x := range all {
			x.c.Close()
			x.holds.Wait()
		}
	})
	processes, err := readHistories(dir)
	if err != nil {
		t.Fatal(err)
	}
	return processes
}

// counting is the backend of a client on memory. It counts the commits of the client that claim by Acks.
type counting struct {
	backend.Backend
	x *client
}

func (b counting) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return countingSession{s, b.x}, nil
}

type countingSession struct {
	backend.Session
	x *client
}

func (s countingSession) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	results, err := s.Session.Commit(ctx, ops...)
	if err == nil && itemlog.AcksAndClaims(txnOf(ops)) {
		s.x.nexts.Add(1)
	}
	return results, err
}

// txnOf returns a transaction with the operations of a commit that create and delete nodes.
func txnOf(ops []backend.Op) *zklog.Txn {
	x := &zklog.Txn{Type: zklog.Multi}
	for _, op := range ops {
		switch op.Kind {
		case backend.OpCreate:
			x.Ops = append(x.Ops, zklog.Op{Type: zklog.Create, Path: op.Path})
		case backend.OpDelete:
			x.Ops = append(x.Ops, zklog.Op{Type: zklog.Delete, Path: op.Path})
		}
	}
	return x
}

// recorderAt records with the clock of the test, which may be fake.
func recorderAt(t *testing.T, dir, name string) *recorder {
	t.Helper()
	rec, err := newRecorder(filepath.Join(dir, name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.f.Close() })
	rec.now = func() int64 { return time.Now().UnixNano() }
	return rec
}

// checkOdd finds the errors that the faults do not explain.
func checkOdd(t *testing.T, processes []*process) {
	t.Helper()
	for _, p := range processes {
		for _, e := range p.events {
			if e.Odd {
				t.Errorf("%s: %v", p.name, e)
			}
		}
	}
}

// checkLocksOnMemory judges the holds of a workload as those of a run.
func checkLocksOnMemory(t *testing.T, processes []*process, work string, least int) {
	t.Helper()
	checkOdd(t, processes)
	var writes []fence.Write
	for _, p := range processes {
		for _, e := range p.events {
			if e.Kind == "write" {
				writes = append(writes, e.write())
			}
		}
	}
	wrong, overlaps, refused := fence.Check(writes)
	verdict(t, wrong, "")
	list := tenures(processes, work, func(*call) int { return 1 })
	for _, of := range eachLock(list) {
		verdict(t, checkOverlap(of, 1), "")
		verdict(t, checkLock(work, of), "")
	}
	t.Logf("figure: chaos of %s on memory: %d holds, %d writes, without the fence %d overlaps, with it %d writes refused", work, len(list), len(writes), overlaps, refused)
	if len(list) < least {
		t.Errorf("%d holds, want at least %d", len(list), least)
	}
}
