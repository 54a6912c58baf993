// Package chaos tests all of package coord at once, in the manner of Jepsen: several client
// processes use every recipe on three real servers, while a nemesis kills, pauses and starves
// servers and clients and breaks networks and disks. Every process records each call before it
// begins and after it ends. At the end checkers use these histories and the servers' own
// transaction logs to decide whether all observations are consistent.
//
// On ZooKeeper there are sixteen kinds of faults: the leader or a follower is killed or stopped,
// the servers restart one by one, a disk is slow or full; the connections of clients are cut,
// their network is lost, slow, or loses requests or replies; clients are stopped or killed,
// sessions are ended, and a server refuses further connections. On etcd members are also cut off
// from each other and compacted. On PostgreSQL a primary is killed, stopped, restarted, and replaced
// by its synchronous standby, also while it continues; its processes and connections are ended, its
// tables rewritten, its data or its write-ahead log have no space, and its clock is set. An asynchronous
// standby is not part of it: its promotion loses acknowledged commits, as documented.
//
// It shows that locks exclude each other and tokens grow, that kept locks, LockAll, shards and
// permits have the owners that they report, that the fence refuses late writes (a resource
// without a fence must show overlaps), that values and counters are linearizable, that items are
// neither lost nor delivered after their Ack, that limits, delays, attempts and dead letters are
// right, and that copies of a tree agree. Schedules leave out no planned time but those of a pause and those beyond their
// limit, claim none twice, and run once what RunNow asks for. A run fails if no commit has acknowledged an item and claimed the
// next one, or if no run of a schedule has lost its claim. Checkers are tested with histories that are wrong.
//
// It does not show a promise about time beyond the bounds that summary_test.go derives. It does
// not choose the request that a fault hits; internal/sweep does. ZooKeeper 3.8.0 can lose
// acknowledged writes on a busy machine (ZOOKEEPER-4643). A raw client, a replay of the logs and
// the servers' snapshots detect this, and the run is then repeated instead of judged. Faults of disks need the
// permission to mount, and those of clocks a C compiler. Elsewhere they are left out, and the summary
// says so. The tests need Linux.
//
//	go test ./internal/chaos                               # each fault once, longer pauses between calls
//	COORD_CHAOS=10m go test -v -timeout 30m -run TestEvery ./internal/chaos
//	cd backend/etcd; COORD_CHAOS=10m go test -v -timeout 30m -run TestEveryRecipeStandsAllFaultsOnEtcd
//	cd backend/postgres; COORD_CHAOS=10m go test -v -timeout 30m -run TestChaos
//
// COORD_LONG=1 sets COORD_CHAOS=10m. COORD_SEED replays the order of the faults.
// COORD_CHAOS_SUMMARY names a file for the summary as Markdown, COORD_CHAOS_KEEP a directory that
// keeps the histories (those of a failed run are kept anyway), and COORD_CHAOS_JUDGE such a
// directory for TestAKeptRun.
package chaos
