// Package cell is the engine of single nodes: a Value, a Counter, and a node that a transaction sets. It
// carries bytes.
//
//	node.go      Node, and Content: the data of a node at one time
//	read.go      reads, which refuse the node of another recipe
//	write.go     Set: creates the node, or writes it at any version
//	replace.go   CompareAndSet and Update: write it under the version that was read
//	outcome.go   the node that a write has reached, and its version, also after a lost reply
//	undo.go      a write that has reached another node than the examined one is undone, or gets a pin
//	pin.go       the pin: a child that keeps a container, in which a value was set, from being removed
//	delete.go    Delete: removes the node, or makes it a directory again
//	txn.go       a write or deletion as a part of a transaction
//	watch.go     Follower: watches, and the latest decoded value, for Load
//	counter.go   Counter: adds to a number
//
// The rules: one recipe for a path, in internal/kinds/kinds.go; the pin, at layout.Pin; each commit is
// applied exactly once or not at all, at core.Session.CommitOnce. Watches decode the
// data by a function that package coord gives them. Package barrier uses the pin and the removal for a
// Barrier. Package coord has the public types, their codecs and their documentation.
//
// TestValue, TestCounter and TestDirectory of internal/recipetest test it.
package cell
