package postgres_test

import (
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/internal/coordtest"
)

// TestTheContract runs the whole contract, each test in a schema of its own, and with a proxy for each
// link.
func TestTheContract(t *testing.T) {
	t.Parallel()
	contract(t, postgres.Options{})
}

// The same without notifications and prepared statements, as through a pool. TestPolling and TestPooler have short forms.
func TestTheContract_Polling(t *testing.T) {
	coordtest.OnlyLong(t)
	t.Parallel()
	contract(t, postgres.Options{Poll: 20 * time.Millisecond})
}

// The same with commits that give their turn up before they are durable. TestEarlyRelease and TestLink have short forms.
func TestTheContract_EarlyRelease(t *testing.T) {
	coordtest.OnlyLong(t)
	t.Parallel()
	contract(t, postgres.Options{EarlyRelease: true})
}

func contract(t *testing.T, o postgres.Options) {
	// A machine with other work loses shorter sessions.
	const timeout = 6 * time.Second
	o.SessionTimeout, o.ContainerInterval = timeout, 200*time.Millisecond
	server := shared.Get(t)
	backendtest.Run(t, backendtest.Harness{
		SessionTimeout: timeout,
		Parallel:       true,
		Collects:       true,
		New: func(t *testing.T) backendtest.Service {
			return used.newService(t, server.Addr(), o)
		},
	})
}
