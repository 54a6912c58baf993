// Package chaos tests all of package coord at once, in the manner of Jepsen: several client
// processes use every recipe on three real ZooKeeper servers, while a nemesis kills, pauses
// and starves servers and clients and breaks networks and disks. Every process records each
// call before it begins and after it ends. At the end checkers use these histories and the
// servers' own transaction logs to decide whether all observations are consistent.
//
// The tests need Linux. The short form ends when each fault was there once, and pauses longer
// between the calls; COORD_CHAOS=10m in the environment, or COORD_LONG=1, is the long form.
// COORD_SEED replays the order of the faults. COORD_CHAOS_SUMMARY names a file for the summary
// as Markdown. COORD_CHAOS_KEEP names a directory that keeps the histories; those of a failed
// run are kept anyway. COORD_CHAOS_JUDGE names such a directory, for TestAKeptRun.
package chaos
