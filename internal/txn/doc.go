// Package txn is the engine of a Txn: operations and conditions that the service applies at once or not at
// all. It carries bytes.
//
//	build.go    Txn: collects guards, conditions and operations; Create, CreateAll
//	op.go       Op: what one operation writes; recipes make operations of their own, such as a Put
//	plan.go     the requests of one attempt, and which part of the transaction each request is of
//	commit.go   Commit: an attempt, the results, and the error that names the part that failed
//
// A commit is applied exactly once or not at all: the rule is at CommitOnce in internal/core/commit.go.
//
// Package coord has the public types and their documentation.
//
// TestTxn of internal/recipetest tests it.
package txn
