package etcd_test

import (
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
)

// unlike are the clauses that describe what ZooKeeper does and etcd does not.
var unlike = []string{
	"sequence/(may) is the parent's own and starts again with a new parent",
	"sequence/(may) goes on within one commit",
	"stat/(may) shows a change of the children in Pzxid, Cversion and NumChildren only",
	"stat/(may) shows the end of an ephemeral child",
	"watch/(may) of exists on a missing node never fires Deleted for a node that was created and deleted",
	"lost packets/(may) leave a commit uncertain that the service refused",
	"watch order/(may) is that of the operations of one commit",
}

// TestTheContract runs the whole contract, each test with keys of its own, and with a proxy for
// each link.
func TestTheContract(t *testing.T) {
	t.Parallel()
	// A machine with other work loses shorter sessions.
	const timeout = 6 * time.Second
	backendtest.Run(t, backendtest.Harness{
		SessionTimeout: timeout,
		Parallel:       true,
		Unlike:         unlike,
		New: func(t *testing.T) backendtest.Service {
			return newService(t, shared.get(t), etcd.Options{SessionTimeout: timeout})
		},
	})
}
