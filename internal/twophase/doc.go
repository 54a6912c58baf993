// Package twophase is the engine of the two-phase commit: a Coordinator proposes transactions to
// sites, and a Participant serves a site. It carries the bytes of payloads.
//
//	transaction.go  the nodes and the rules; a transaction, its decision, and the removal of its record
//	coordinator.go  Coordinator: Propose
//	propose.go      one Propose under way: creates or joins the transaction, and decides it
//	participant.go  Participant: Serve works off the inbox of its site
//	branch.go       the work of a site on one transaction: vote, wait, carry out, acknowledge
//	handler.go      Handler, the functions of the program, and Branch, which they get
//	present.go      which sites are served
//	remove.go       RemoveSite
//	status.go       Status and List
//	recover.go      Recover and Forget: the transactions of dead proposers
//
// Package coord has the public types and their documentation. It applies the codec: the engine gets
// functions that encode and decode a payload.
//
// TestTwoPhase of internal/recipetest tests it, and internal/model/twophase_test.go explores the
// rules.
package twophase
