// Package election is the engine of an Election: candidates queue on one path, and the head of the queue leads.
//
//	campaign.go     Election: a campaign, and the loops Run and Terms
//	leadership.go   Leadership: sends terms on a channel, and resigns a term that no receiver takes in time
//	term.go         Term: the announcement, and the removal of the nodes of a term
//	observe.go      the leader, its changes, and the list of the candidates
//
// The queue is a line of exclusive contenders: the rules are in internal/line/line.go. Package
// coord has the public types and their documentation.
//
// TestElection of internal/recipetest tests it, and TestLeadersAreReplaced of internal/faulttest tests it with
// processes that are paused and killed.
package election
