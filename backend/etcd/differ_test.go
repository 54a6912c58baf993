package etcd_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// Memory with revisions is the reference: the same scripts return the same results, errors,
// Stats and events on both, except for what unlike names.
func TestMemoryAndEtcdAgree(t *testing.T) {
	const timeout = 20 * time.Second
	real := backendtest.Harness{
		SessionTimeout: timeout, Unlike: unlike,
		New: func(t *testing.T) backendtest.Service {
			return newService(t, shared.get(t), etcd.Options{SessionTimeout: timeout})
		},
	}
	model := backendtest.Harness{
		SessionTimeout: timeout,
		New: func(*testing.T) backendtest.Service {
			return coordtest.MemoryService{Store: memory.New(&memory.Options{
				SessionTimeout: timeout, Revisions: true, Without: backend.Clock,
				Limits: backend.Limits{Ops: 63},
			})}
		},
	}
	for seed := range uint64(coordtest.Count(2, 20)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			backendtest.Differ(t, model, real, seed, coordtest.Count(400, 2000))
		})
	}
}
