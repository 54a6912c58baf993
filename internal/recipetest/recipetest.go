// Package recipetest has the tests of the recipes. Each recipe has an entry ([Mutex], [Queue], …;
// [All] runs all) that runs its suites on [Services]: on memory in fake time, and on a real
// service. The tests of this package call them for memory and ZooKeeper; those of backend/etcd
// for etcd, and those of backend/postgres for PostgreSQL.
//
// They show that a recipe keeps its promises: exclusion, order, growing tokens, typed errors, no
// lost wake-up, and no orphaned node when a request or a reply is lost, a session expires,
// contact breaks, or a caller gives up at any step. A test produces its fault at an exact call,
// with a hook of package backendtest or a fault of a link.
//
// A suite is a type such as mutexTests. Each of its exported methods is a subtest and chooses its
// worlds with each, all, real or revisions. It is in mutex.go; tests that need only memory are
// functions TestMutex_… in mutex_test.go. The entry of the recipe lists its suites.
//
// The clients are in one process, and the author of a test chooses its fault and moment. For
// other orders see internal/simulation and internal/model, for each request on a real server
// internal/sweep, for processes and servers that are killed internal/faulttest and
// internal/chaos.
//
//	go test -run TestMutex ./internal/recipetest
//	cd backend/etcd; go test -run TestTheRecipes                # one test of each suite
//	cd backend/etcd; COORD_LONG=1 go test -timeout 30m -run TestTheRecipes    # all
//
// With COORD_REVISIONS=1 the stores in memory number nodes as etcd does.
package recipetest

import "testing"

// Barrier tests Barrier on services.
func Barrier(t *testing.T, on Services) {
	on.run(t, barrierTests{on})
}

// Cache tests Cache on services.
func Cache(t *testing.T, on Services) {
	on.run(t, cacheTests{on}, cacheViewTests{on})
}

// Client tests Client on services.
func Client(t *testing.T, on Services) {
	on.run(t, clientTests{on})
}

// Counter tests Counter on services.
func Counter(t *testing.T, on Services) {
	on.run(t, counterTests{on})
}

// DelayQueue tests DelayQueue on services.
func DelayQueue(t *testing.T, on Services) {
	on.run(t, queueDelayTests{on})
}

// Directory tests Directory on services.
func Directory(t *testing.T, on Services) {
	on.run(t, directoryFaultTests{on}, directoryPinTests{on}, directoryTests{on})
}

// DoubleBarrier tests DoubleBarrier on services.
func DoubleBarrier(t *testing.T, on Services) {
	on.run(t, doublebarrierFaultTests{on}, doublebarrierTests{on})
}

// Election tests Election on services.
func Election(t *testing.T, on Services) {
	on.run(t, electionFaultTests{on}, electionLoopTests{on}, electionObserveTests{on}, electionTests{on})
}

// GiveUp tests GiveUp on services.
func GiveUp(t *testing.T, on Services) {
	on.run(t, giveupTests{on})
}

// Group tests Group on services.
func Group(t *testing.T, on Services) {
	on.run(t, groupFaultTests{on}, groupGiveupTests{on}, groupPickerTests{on}, groupSettleTests{on}, groupTests{on}, groupWatchTests{on})
}

// Hold tests Hold on services.
func Hold(t *testing.T, on Services) {
	on.run(t, holdTests{on})
}

// Kind tests Kind on services.
func Kind(t *testing.T, on Services) {
	on.run(t, kindsTests{on})
}

// LockAll tests LockAll on services.
func LockAll(t *testing.T, on Services) {
	on.run(t, lockAllTests{on}, lockTests{on})
}

// Mutex tests Mutex on services.
func Mutex(t *testing.T, on Services) {
	on.run(t, lineHolderTests{on}, mutexKeepTests{on}, mutexTests{on}, pitfallCreateTests{on}, pitfallGrantTests{on}, pitfallOwnTests{on})
}

// PriorityQueue tests PriorityQueue on services.
func PriorityQueue(t *testing.T, on Services) {
	on.run(t, queuePriorityTests{on})
}

// Queue tests Queue on services.
func Queue(t *testing.T, on Services) {
	on.run(t, queueAckTests{on}, queueConsumerTests{on}, queueCostTests{on}, queueCountTests{on}, queueCrashTests{on}, queueDeadTests{on}, queueDrainTests{on}, queueFaultTests{on}, queueKeysTests{on}, queueLargeTests{on}, queueLimitTests{on}, queueNextTests{on}, queueOptionsTests{on}, queueOutcomeTests{on}, queuePopTests{on}, queueProtocolTests{on}, queueRedeliveryTests{on}, queueRedriveTests{on}, queueRetryTests{on}, queueStatsTests{on}, queueTests{on}, queueTimeoutTests{on}, queueTraceTests{on}, queueUndecodableTests{on}, queueWorkTests{on}, slotsTests{on})
}

// RWMutex tests RWMutex on services.
func RWMutex(t *testing.T, on Services) {
	on.run(t, rwmutexTests{on})
}

// Revoke tests Revoke on services.
func Revoke(t *testing.T, on Services) {
	on.run(t, lineRevokeTests{on})
}

// Schedule tests Schedule on services.
func Schedule(t *testing.T, on Services) {
	on.run(t, scheduleTests{on})
}

// Semaphore tests Semaphore on services.
func Semaphore(t *testing.T, on Services) {
	on.run(t, semaphoreFaultTests{on}, semaphoreTests{on})
}

// Shards tests Shards on services.
func Shards(t *testing.T, on Services) {
	on.run(t, shardsFaultTests{on}, shardsTests{on})
}

// Trace tests Trace on services.
func Trace(t *testing.T, on Services) {
	on.run(t, traceLockTests{on}, traceRestTests{on}, traceSlowTests{on})
}

// TwoPhase tests TwoPhase on services.
func TwoPhase(t *testing.T, on Services) {
	on.run(t, twophaseDeletedTests{on}, twophaseDoubtTests{on}, twophaseFaultTests{on}, twophaseLostTests{on}, twophasePresentTests{on}, twophaseSiteTests{on}, twophaseTests{on})
}

// Txn tests Txn on services.
func Txn(t *testing.T, on Services) {
	on.run(t, txnTests{on})
}

// Value tests Value on services.
func Value(t *testing.T, on Services) {
	on.run(t, valueFaultTests{on}, valueLoadTests{on}, valueTests{on}, valueWatchTests{on})
}

// All tests all of them.
func All(t *testing.T, on Services) {
	t.Run("Barrier", func(t *testing.T) { Barrier(t, on) })
	t.Run("Cache", func(t *testing.T) { Cache(t, on) })
	t.Run("Client", func(t *testing.T) { Client(t, on) })
	t.Run("Counter", func(t *testing.T) { Counter(t, on) })
	t.Run("DelayQueue", func(t *testing.T) { DelayQueue(t, on) })
	t.Run("Directory", func(t *testing.T) { Directory(t, on) })
	t.Run("DoubleBarrier", func(t *testing.T) { DoubleBarrier(t, on) })
	t.Run("Election", func(t *testing.T) { Election(t, on) })
	t.Run("GiveUp", func(t *testing.T) { GiveUp(t, on) })
	t.Run("Group", func(t *testing.T) { Group(t, on) })
	t.Run("Hold", func(t *testing.T) { Hold(t, on) })
	t.Run("Kind", func(t *testing.T) { Kind(t, on) })
	t.Run("LockAll", func(t *testing.T) { LockAll(t, on) })
	t.Run("Mutex", func(t *testing.T) { Mutex(t, on) })
	t.Run("PriorityQueue", func(t *testing.T) { PriorityQueue(t, on) })
	t.Run("Queue", func(t *testing.T) { Queue(t, on) })
	t.Run("RWMutex", func(t *testing.T) { RWMutex(t, on) })
	t.Run("Revoke", func(t *testing.T) { Revoke(t, on) })
	t.Run("Schedule", func(t *testing.T) { Schedule(t, on) })
	t.Run("Semaphore", func(t *testing.T) { Semaphore(t, on) })
	t.Run("Shards", func(t *testing.T) { Shards(t, on) })
	t.Run("Trace", func(t *testing.T) { Trace(t, on) })
	t.Run("TwoPhase", func(t *testing.T) { TwoPhase(t, on) })
	t.Run("Txn", func(t *testing.T) { Txn(t, on) })
	t.Run("Value", func(t *testing.T) { Value(t, on) })
}
