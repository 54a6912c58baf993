// Package itemlog replays what became of the items of queues, from the transactions that a service
// has committed: puts, claims and their ends, delays, dead letters. It finds what no fault of a
// client or a server excuses: two claims at a time, a claim before the item is due, an attempt that
// is counted wrongly, an item in two places, a dead letter too early.
//
// It knows the names of the nodes, and nothing of the engine that makes them. Suites that record what
// clients were told compare their records with it: internal/chaos and internal/faulttest, whose tests
// of their checkers have logs that are wrong.
package itemlog
