// Package mirror keeps a copy of a tree in memory: the engine of the cache.
//
//	cache.go     Cache: the copy, its maintenance by Run, and its readers without a round trip
//	sync.go      the rules of the copy; passes that read the tree, watches and queued reads
//	reply.go     what the reply to each read changes
//	node.go      a node of the copy, its children, and which states are the same
//	events.go    Events: the changes of the copy in batches
//	view.go      View: one decoded value for each version of a node
//
// Package coord has the public types and their documentation.
//
// TestCache of internal/recipetest tests it.
package mirror
