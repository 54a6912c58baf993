package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/costtest"
)

// costs is what calls cost on PostgreSQL: what they cost on ZooKeeper, and a fifth more for a busy machine.
var costs = costtest.Service{
	Name: "PostgreSQL", Rounds: 10,
	Most: map[string]float64{"Lock": 1.2, "Release": 1.2, "hand-over": 1.2, "change of leader": 1.2, "Put": 1.2, "PutOnce": 1.2, "PutOnce again": 4.8, "Take": 2.4, "Take by priority": 3.8, "Take with FairEvery": 3.8, "Ack": 1.2, "item of Work": 1.5, "Pop": 1.5},
	New: func(t *testing.T) costtest.Tree {
		s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 10 * time.Minute})
		s.trips = new(costtest.Trips)
		other, err := pgx.Connect(t.Context(), pgtest.URL(s.server, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := other.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		connect := func(name string) (backend.Backend, any) { return s.link(name), s.link(name).line }
		return costtest.Tree{Trips: s.trips, Connect: connect, Ping: other.Ping}
	},
}

func TestCost_OfALockAndItsRelease(t *testing.T) { t.Parallel(); costs.LockAndRelease(t) }
func TestCost_OfAHandOver(t *testing.T)          { t.Parallel(); costs.HandOver(t) }
func TestCost_OfAChangeOfLeader(t *testing.T)    { t.Parallel(); costs.ChangeOfLeader(t) }
func TestCost_OfAnItem(t *testing.T)             { t.Parallel(); costs.Item(t) }

// In a turn of a contended lock a client creates and deletes its node, lists the directory, watches the two nodes ahead and
// later its own.
func TestCost_OfATurnInRequests(t *testing.T) {
	t.Parallel()
	costs.Turn(t, map[string]float64{string(commits): 2.4, string(reads): 3.6})
}
