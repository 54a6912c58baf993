package postgres_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/internal/coordtest"
)

// likePostgreSQL returns memory that does what PostgreSQL does: it has ZooKeeper's numbers, and spares.
func likePostgreSQL(timeout time.Duration) backendtest.Harness {
	return backendtest.Harness{SessionTimeout: timeout, New: func(*testing.T) backendtest.Service {
		return coordtest.MemoryService{Store: memory.New(&memory.Options{
			SessionTimeout: timeout, ContainerInterval: -1, Spares: true, Limits: backend.Limits{Sequence: math.MaxInt64},
		})}
	}}
}

// Memory is the reference: the same scripts return the same results, errors, Stats and events on both.
func TestMemoryAndPostgreSQLAgree(t *testing.T) {
	t.Parallel()
	const timeout = 20 * time.Second
	server := shared.Get(t)
	real := backendtest.Harness{
		SessionTimeout: timeout,
		New: func(t *testing.T) backendtest.Service {
			return newService(t, server.Addr(), postgres.Options{SessionTimeout: timeout})
		},
		// ZooKeeper checks the nodes of an Arm at one moment, and fires the earlier watches of those that have
		// changed too.
		Unlike: []string{"arm/(may) checks all of its nodes at one moment"},
	}
	for seed := range uint64(coordtest.Count(2, 20)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			backendtest.Differ(t, likePostgreSQL(timeout), real, seed, coordtest.Count(300, 2000))
		})
	}
}
