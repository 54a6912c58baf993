// Package faulttest tests package coord from outside, on an ensemble of three ZooKeeper servers,
// while processes and servers are killed and paused and networks drop all traffic. Each test is
// one scenario, and measures what it shows.
//
//   - Locks and leaders: a resource in another process refuses late writes, and one without a
//     fence counts the overlaps. The time from a kill, a pause or a lost network to the next
//     grant, and whether the holder learns of its loss first, with margins large enough and too
//     small.
//   - Queues: producers and consumers in processes, and a fleet at a queue and a delay queue
//     with all faults at once and clocks that are five minutes wrong. The consumers take items
//     by Take, by All, and by Work, whose Acks claim the next items. The reports and the servers'
//     log show that no item is lost, early, or delivered after its Ack, and why each item waited.
//   - Two-phase commit: a process is killed, or a message lost, at each request; a checker
//     proves from the servers' log that decisions follow from votes.
//   - Caches: a tree changes while servers are killed and sessions ended; the copies, the
//     folded events and the tree are equal after each round.
//   - Shards: members come, leave and lose their sessions while the leader of the servers is
//     killed; each shard is written under a fence.
//   - Programs: a leader, a queue service and the owners of shards as users write them.
//   - Schedules: a process is killed, or paused beyond its session, in the middle of a run; the
//     planned time is repeated or abandoned as docs/schedules.md says, and late writes are refused.
//   - Costs: round trips, requests and woken clients of a lock, a change of leader, an item and
//     a transaction, counted in frames; failed attempts leave no watch, node or goroutine.
//
// The checkers are tested with records that are wrong. Faults of several recipes at once are in
// internal/chaos. A figure holds for its machine and servers only.
//
//	go test -v ./internal/faulttest                                   # -v shows the figures
//	COORD_LONG=1 go test -v -timeout 2h ./internal/faulttest          # the full number of rounds
//	COORD_LONG=1 go test -v -timeout 30m -run TestAFleet ./internal/faulttest # 20,000 items
//	COORD_CHURN=2m go test -v -timeout 20m -run TestACacheIsExact ./internal/faulttest
//	cd backend/etcd; COORD_LONG=1 go test -v -timeout 30m -run 'TestProcesses|TestPrograms|TestTransactions|TestACache|TestAFleet'
//
// The tests need Linux, where all processes share one monotonic clock that Go can read.
package faulttest
