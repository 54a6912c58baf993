package recipetest

import (
	"os"
	"strconv"
	"testing"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkservice"
)

func TestMain(m *testing.M) {
	coordtest.Widen(2)
	coordtest.Main(m)
}

// share is the Share of ZooKeeper. ./test.sh sets it, unless it runs the long form.
func share() int {
	n, _ := strconv.Atoi(os.Getenv("COORD_SHARE"))
	return n
}

// services are memory and ZooKeeper.
var services = Services{
	Memory: true,
	Share:  share(),
	Name:   "zookeeper",
	New: func(t *testing.T) backendtest.Service {
		return zkservice.New(t, coordtest.Server.Get(t), zookeeper.Options{SessionTimeout: coordtest.RealTimeout})
	},
	Collecting: func(t *testing.T) backendtest.Service {
		return zkservice.New(t, coordtest.Collecting.Get(t), zookeeper.Options{SessionTimeout: coordtest.RealTimeout})
	},
}

func TestBarrier(t *testing.T)       { Barrier(t, services) }
func TestCache(t *testing.T)         { Cache(t, services) }
func TestClient(t *testing.T)        { Client(t, services) }
func TestCounter(t *testing.T)       { Counter(t, services) }
func TestDelayQueue(t *testing.T)    { DelayQueue(t, services) }
func TestDirectory(t *testing.T)     { Directory(t, services) }
func TestDoubleBarrier(t *testing.T) { DoubleBarrier(t, services) }
func TestElection(t *testing.T)      { Election(t, services) }
func TestGiveUp(t *testing.T)        { GiveUp(t, services) }
func TestGroup(t *testing.T)         { Group(t, services) }
func TestHold(t *testing.T)          { Hold(t, services) }
func TestKind(t *testing.T)          { Kind(t, services) }
func TestLockAll(t *testing.T)       { LockAll(t, services) }
func TestMutex(t *testing.T)         { Mutex(t, services) }
func TestPriorityQueue(t *testing.T) { PriorityQueue(t, services) }
func TestQueue(t *testing.T)         { Queue(t, services) }
func TestRWMutex(t *testing.T)       { RWMutex(t, services) }
func TestRevoke(t *testing.T)        { Revoke(t, services) }
func TestSchedule(t *testing.T)      { Schedule(t, services) }
func TestSemaphore(t *testing.T)     { Semaphore(t, services) }
func TestShards(t *testing.T)        { Shards(t, services) }
func TestTrace(t *testing.T)         { Trace(t, services) }
func TestTwoPhase(t *testing.T)      { TwoPhase(t, services) }
func TestTxn(t *testing.T)           { Txn(t, services) }
func TestValue(t *testing.T)         { Value(t, services) }
