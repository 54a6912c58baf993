package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/costtest"
)

// costs is what calls cost on etcd: what they cost on ZooKeeper, and a tenth or a fifth more for a busy machine.
var costs = costtest.Service{
	Name: "etcd", Rounds: 20,
	Most: map[string]float64{"Lock": 1.1, "Release": 1.1, "hand-over": 1.2, "change of leader": 1.2, "Put": 1.1, "PutOnce": 1.1, "PutOnce again": 4.4, "Take": 2, "Take by priority": 3.8, "Take with FairEvery": 3.8, "Ack": 1.1, "item of Work": 1.5, "Pop": 1.5},
	New: func(t *testing.T) costtest.Tree {
		// No session proves its watch stream meanwhile: it does so when a sixth of the lease has passed.
		s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 10 * time.Minute})
		s.trips = new(costtest.Trips)
		connect := func(name string) (backend.Backend, any) { return s.link(name), s.link(name) }
		return costtest.Tree{Trips: s.trips, Connect: connect, Ping: func(ctx context.Context) error {
			_, err := s.roundTrip(ctx)
			return err
		}}
	},
}

func TestALockAndItsReleaseAreOneRoundTripEach(t *testing.T) { t.Parallel(); costs.LockAndRelease(t) }
func TestAHandOverIsOneRoundTrip(t *testing.T)               { t.Parallel(); costs.HandOver(t) }
func TestAChangeOfLeaderIsOneRoundTrip(t *testing.T)         { t.Parallel(); costs.ChangeOfLeader(t) }
func TestAnItemTakesFourRoundTripsAtMost(t *testing.T)       { t.Parallel(); costs.Item(t) }

// In a turn of a contended lock a client creates its node, lists the directory, watches its node and the two ahead of it, and
// reads these three; it lists again when it may be next; it deletes its node, and the server keeps a watcher
// until it is canceled.
func TestTheRequestsOfATurn(t *testing.T) {
	t.Parallel()
	costs.Turn(t, map[string]float64{writeTxn: 2.2, readTxn: 3.3, watchCreate: 3.3, watchCancel: 3.3, watchProgress: 1.1})
}

// A read can be older than the watchers beside it. On a busy machine proofs come late, and are requested again.
func TestTheRequestsOfATurnUnderLoad(t *testing.T) {
	t.Parallel()
	costs.TurnUnderLoad(t, map[string]float64{writeTxn: 2.2, readTxn: 5.5, watchCreate: 5.5, watchCancel: 5.5, watchProgress: 4.4})
}
