package etcd_test

import (
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

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

// late are the clauses of the order of events among themselves and before reads. Servers before
// 3.4.25 and 3.5.8 break them now and then: the events of a new watcher can come a tenth of a
// second after later ones, and a progress reply does not show whether they have come (etcd #15220).
var late = []string{
	"arm/misses nothing between a read and itself, while others write",
	"tree/reports a change before a watch of a read fires for a later one",
	"tree/reports a change before any read that shows it",
	"tree/reports an own write before the next read",
	"tree/with reads after its changes gives a copy of the tree while others write",
	"tree in trouble/is repeated when its request or its reply is lost",
	"watch order/delivers the event before any read that shows the change",
	"watch order/delivers the event of a child before any read that shows it",
	"watch order/delivers the events of the nodes above and below before any read that shows them",
	"watch order/delivers the events of nodes far above and below before any read that shows them",
	"watch order/delivers the event of an own write before the next read",
	"watch order/is that of the commits of one session",
	"watch order/is that of the commits of several sessions",
}

// versionOf returns the version of a server.
func versionOf(t *testing.T, addr string) string {
	t.Helper()
	cc, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	r, err := pb.NewMaintenanceClient(cc).Status(t.Context(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Version
}

// excused returns the clauses that a server does not keep for certain, with the reason.
func excused(t *testing.T, addr string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	if version := versionOf(t, addr); !etcd.Ordered(version) {
		for _, name := range late {
			all[name] = "etcd " + version + ": events can come late (etcd #15220, mended in 3.4.25 and 3.5.8)"
		}
	}
	return all
}

// loads reports whether a clause is about the outcome of many requests. It waits for the end of no session, and a machine with much other
// work breaks the contact of shorter ones meanwhile.
func loads(t *testing.T) bool {
	return strings.Contains(t.Name(), "/concurrency/") || strings.HasSuffix(t.Name(), "/accepts_very_many_targets")
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
		Excused:        excused(t, shared.get(t)),
		Collects:       true,
		New: func(t *testing.T) backendtest.Service {
			o := etcd.Options{SessionTimeout: timeout, ContainerInterval: 200 * time.Millisecond}
			if loads(t) {
				o.SessionTimeout = time.Minute
			}
			return newService(t, shared.get(t), o)
		},
	})
}
