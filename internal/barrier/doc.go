// Package barrier is the engine of a Barrier: one node, which exists while the barrier is set.
//
//	node.go    the node of a barrier, and what a read finds there: a barrier, or a directory
//	set.go     Set: creates the node, or sets the barrier in the directory that is there
//	remove.go  Remove: deletes the node, or makes it a directory again
//	wait.go    Wait: waits until the barrier is removed
//
// The rules of a node in a directory are in internal/kinds/kinds.go. In a directory, package cell sets and
// removes a Barrier like a Value. Package coord has the public type and its documentation.
//
// TestBarrier of internal/recipetest tests it.
package barrier
