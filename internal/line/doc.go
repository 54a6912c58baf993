// Package line is the queue of contenders of a lock or an election, and the locks themselves.
//
//	line.go        the rules; a contender takes a place in the line
//	wait.go        a contender waits for its turn, which the deletion of one node grants
//	release.go     the node of a hold that ends: deleted, kept, or handed over to a local caller
//	lock.go        Lock, the engine of a Mutex, and of each side of an RWMutex
//	mutex.go       Mutex: the callers of one client take turns (local.go), and may keep the node (keep.go)
//	rwmutex.go     RWMutex: writers and readers, and the downgrade
//	all.go         LockAll, with a joint commit for several lines (joint.go); the set of holds is in holdset
//	revoke.go      a request to the holders to release
//	contenders.go  reads the contenders, and the owners of shards
//
// Package coord has the public types and their documentation.
//
// TestMutex, TestRWMutex, TestLockAll and TestRevoke of internal/recipetest test it, and internal/model explores
// the rules (line_*_test.go, local_test.go, keep_test.go, lockall_test.go).
package line
