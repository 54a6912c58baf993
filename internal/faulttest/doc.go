// Package faulttest tests package coord from outside: locks, elections, queues, a cache and
// transactions, while processes and servers are killed and paused and networks drop all
// traffic, on a real ensemble of three ZooKeeper servers. It also counts costs: round trips,
// requests, and clients that are woken.
//
// The tests need Linux, where all processes share one monotonic clock that Go can read.
// COORD_LONG=1 in the environment runs the full number of rounds; -v shows the figures.
package faulttest
