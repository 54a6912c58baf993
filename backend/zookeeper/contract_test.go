package zookeeper_test

import (
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
)

// TestTheContract runs the whole contract, each test below a new root, with a proxy for each
// link.
func TestTheContract(t *testing.T) {
	t.Parallel()
	// A machine with other work loses shorter sessions.
	const timeout = 10 * time.Second
	backendtest.Run(t, backendtest.Harness{
		SessionTimeout: timeout,
		Parallel:       true,
		Collects:       true,
		New: func(t *testing.T) backendtest.Service {
			return zkservice.New(t, shared.Get(t), zookeeper.Options{SessionTimeout: timeout})
		},
	})
}
