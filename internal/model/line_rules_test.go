//go:build !race

package model

// rules are the rules that the variants break. Each is a rule in the comments of package
// internal/line, or an assumption behind one.
type rules struct {
	// The watch on the own node is armed, and the node found present, no later than the watch
	// on the predecessor.
	ownNever bool // no watch on the own node
	ownLate  bool // it is armed during the wait
	ownAfter bool // it is armed after the others, by itself, without a check that the node exists
	noSince  bool // a change of its data before the watch is missed
	// At the grant the session, its lease and that watch are checked under one lock, and
	// events are marked in the order in which they arrived.
	ownUnchecked     bool
	sessionUnchecked bool
	anyOrder         bool
	// Only Deleted of a node known as head grants; every other wake-up lists.
	anyWake bool // any event of an earlier node grants
	anyKind bool // any event of a node known as head grants
	anyNode bool // any deletion of the predecessor grants
	// The deletion also counts if it came during the list that shows that node as the head.
	goneEarlier bool // it counts even before that list
	goneNotHead bool // it counts even if the list does not show that node as the head
	goneOther   bool // the deletion of another node counts
	blind       bool // a node that is missing when it should be watched is waited for
	dataWatch   bool // a watch that fires for data, treated as the deletion
	// When the node ahead was the head and is deleted, the predecessor is the head.
	anyAhead     bool // even when the node ahead was not the head
	aheadAnyKind bool // even after any other event of the node ahead
	// Reconnection fires all watches with LookAgain, so afterwards nothing is known until the
	// directory was listed again.
	headKept bool // the same nodes are watched again, and the head is still known as head
	notAgain bool // no watch is armed again
	asksSoon bool // the next connection is used before all watches have fired
	// A writer waits for its predecessor, and lists again whenever it is woken.
	writerAhead bool
	// The rules of other comments.
	anyOwner     bool // a node is found by its name, whichever session created it
	ownForgotten bool // a holder does not watch its node
	noSync       bool // a client that does not find its node lists again without reading the node

	// Not unsafe: Arm has a moment and a request for each watch, in the order of its targets.
	oneByOne bool
}
