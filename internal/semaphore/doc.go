// Package semaphore is the engine of a Semaphore: permits that the clients of one path share.
//
//	permits.go   Semaphore: its nodes, its contenders, the removal of a request
//	acquire.go   the rules, and an acquisition up to the grant or the wait
//	wait.go      the watches of a waiter until its turn comes
//	limit.go     the limit on the service, and the limit that a client expects
//
// Package coord has the public types and their documentation.
//
// TestSemaphore of internal/recipetest tests it, and internal/model/semaphore_test.go explores the protocol.
package semaphore
