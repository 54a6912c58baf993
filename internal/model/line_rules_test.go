//go:build !race

package model

// rules are what the variants break. Each is one rule of the comment of line, or
// of what it stands on.
type rules struct {
	// "the watch on the own node is armed, and the node found present, no later
	// than the one on the predecessor"
	ownNever bool // no watch on the own node
	ownLate  bool // it is armed while the wait goes on already
	ownAfter bool // it is armed after the others, by itself, and nobody asks whether the node is there
	noSince  bool // a change of its data from before the watch is missed
	// "at the grant the session, its lease and that watch are tested under one
	// lock, and events are marked in the order in which they came"
	ownUnchecked     bool
	sessionUnchecked bool
	anyOrder         bool
	// "only Deleted of a node known as head grants; every other wake-up lists"
	anyWake bool // any event of a node before grants
	anyKind bool // any event of a node known as head grants
	anyNode bool // any deletion of the node before grants
	// "It counts too if it came while the list was under way that shows that node as
	// the head"
	goneEarlier bool // it counts if it came before that list
	goneNotHead bool // whatever the list says of that node
	goneOther   bool // that of another node counts
	blind       bool // a node that is gone when it is to be watched is waited for
	dataWatch   bool // a watch that fires for data, taken for the deletion
	// "when the node ahead was the head and is deleted, the one before is the head"
	anyAhead     bool // so it is when the node ahead was not the head
	aheadAnyKind bool // so it is after any event of the node ahead
	// "reconnection fires all watches with LookAgain, so afterwards nothing is
	// known until the directory was listed again"
	headKept bool // what is watched is watched again, and the head still known as head
	notAgain bool // no watch is armed again
	asksSoon bool // the next connection is used before all watches have fired
	// "A writer waits for the node before its own, and lists again whenever it
	// is woken"
	writerAhead bool
	// What stands in other comments.
	anyOwner     bool // a node is found by its name, whichever session made it
	ownForgotten bool // a holder does not watch its node
	noSync       bool // who does not find itself lists again, and does not look at its node

	// Not unsafe: Arm has a moment and a request for each watch, in the order of
	// its targets.
	oneByOne bool
}
