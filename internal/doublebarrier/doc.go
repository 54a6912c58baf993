// Package doublebarrier is the engine of a DoubleBarrier: rounds that n members begin together and
// end together.
//
//	round.go    the rules; the state of a barrier, and the round that its node ready lists
//	enter.go    Enter: a waiter joins the directory of members, and opens a round or waits for one
//	leave.go    Leave: a member of a round waits for the others; removal of a member's nodes
//
// Package coord has the public types and their documentation.
//
// TestDoubleBarrier of internal/recipetest tests it, and
// internal/model/doublebarrier_*_test.go explores the rules.
package doublebarrier
