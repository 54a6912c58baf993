// Package itemlog replays the lives of queue items from the transactions that a service has
// committed: puts, claims and their ends, delays, dead letters. It reports violations that no fault
// of a client or a server excuses: two claims of an item at a time, a claim before the item is due, an
// attempt that is counted wrongly, an item in two places, a dead letter too early.
//
// It knows the names of the nodes, and does not use the engine that makes them. The suites
// internal/chaos and internal/faulttest compare its items with the results that clients reported.
// Their tests of that comparison also apply logs with violations.
package itemlog
