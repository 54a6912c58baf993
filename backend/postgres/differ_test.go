package postgres_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
)

type memoryService struct{ *memory.Store }

func (s memoryService) Root() string                      { return "/" }
func (s memoryService) Link(name string) backendtest.Link { return s.Store.Link(name) }

// scripts returns short, or long if COORD_LONG is set.
func scripts(short, long uint64) uint64 {
	if os.Getenv("COORD_LONG") != "" {
		return long
	}
	return short
}

// written is a service on which each Carry is a SetData. ZooKeeper writes the data of a Carry, PostgreSQL
// does not.
type written struct{ backendtest.Service }

type writtenLink struct{ backendtest.Link }

type writtenSession struct{ backend.Session }

func (s written) Link(name string) backendtest.Link { return writtenLink{s.Service.Link(name)} }

func (l writtenLink) Open(ctx context.Context) (backend.Session, error) {
	s, err := l.Link.Open(ctx)
	if err != nil {
		return nil, err
	}
	return writtenSession{s}, nil
}

func (s writtenSession) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	ops = slices.Clone(ops)
	for i := range ops {
		if ops[i].Kind == backend.OpCarry {
			ops[i].Kind = backend.OpSetData
		}
	}
	return s.Session.Commit(ctx, ops...)
}

// Memory is the reference: the same scripts return the same results, errors, Stats and events on both.
// Where a Carry writes nothing, the numbers of memory are not those of ZooKeeper and of PostgreSQL, so
// there are two comparisons.
func TestMemoryAndPostgreSQLAgree(t *testing.T) {
	t.Parallel()
	const timeout = 20 * time.Second
	server := shared.Get(t)
	// ZooKeeper checks the nodes of an Arm at one moment, and fires the earlier watches of those that have
	// changed too.
	arm := "arm/(may) checks all of its nodes at one moment"
	harness := func(unlike []string, open func(t *testing.T) backendtest.Service) backendtest.Harness {
		return backendtest.Harness{SessionTimeout: timeout, Unlike: append(unlike, arm), New: open}
	}
	real := func(t *testing.T) backendtest.Service {
		return newService(t, server.Addr(), postgres.Options{SessionTimeout: timeout})
	}
	model := func(revisions bool) backendtest.Service {
		return memoryService{memory.New(&memory.Options{
			SessionTimeout: timeout, ContainerInterval: -1, Revisions: revisions, Limits: backend.Limits{Sequence: math.MaxInt64},
		})}
	}
	steps := int(scripts(400, 2000))
	for seed := range scripts(3, 20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			backendtest.Differ(t,
				harness(nil, func(t *testing.T) backendtest.Service { return written{model(false)} }),
				harness(nil, func(t *testing.T) backendtest.Service { return written{real(t)} }), seed, steps)
		})
	}
	for seed := range scripts(1, 20) {
		t.Run(fmt.Sprint("seed ", seed, " with revisions"), func(t *testing.T) {
			unlike := []string{"sequence/(may) is the parent's own and starts again with a new parent"}
			backendtest.Differ(t, harness(unlike, func(t *testing.T) backendtest.Service { return model(true) }), harness(nil, real), seed, steps)
		})
	}
}
