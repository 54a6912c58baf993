// Package chaos tests all of package coord at once, in the manner of Jepsen: some
// client processes work with every recipe on three real ZooKeeper servers, while a
// nemesis kills, pauses and starves servers and clients and breaks networks and
// disks. Every process writes down what it is about to do and what became of it.
// At the end, and from the servers' own transaction logs, checkers judge whether
// all that was seen can be true.
//
// The tests need Linux. The run takes 45 s; COORD_CHAOS=10m in the environment, or
// COORD_LONG=1, makes it longer. COORD_SEED replays the order of the faults.
// COORD_CHAOS_SUMMARY names a file that gets the summary as Markdown,
// COORD_CHAOS_KEEP a directory that keeps the histories; those of a run that failed
// are kept anyway. COORD_CHAOS_JUDGE names such a directory, for TestAKeptRun.
package chaos
