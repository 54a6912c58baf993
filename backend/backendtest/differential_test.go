package backendtest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
	"github.com/go-coord/coord/internal/zktest"
)

// Memory is the reference for what ZooKeeper does: the same scripts show the
// same results, errors, Stats and events on both.
func TestMemoryAndZooKeeperAgree(t *testing.T) {
	ensemble := zktest.Run(t, nil)
	const timeout = 4 * time.Second
	real := backendtest.Harness{
		SessionTimeout: timeout,
		New: func(t *testing.T) backendtest.Service {
			return zkservice.New(t, ensemble, zookeeper.Options{SessionTimeout: timeout})
		},
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			backendtest.Differ(t, memoryHarness(timeout), real, seed, 600)
		})
	}
}
