package mutants

// holdMutants are defects of holds and sessions.
var holdMutants = []mutant{
	{"a lost session ends no hold", "session.go",
		"h.lose(err)\n", "_ = h\n",
		"TestAPartitionedHolderIsToldBeforeAnotherIsGranted"},
	{"a hold does not compare its lease with the clock", "hold.go",
		"if err := h.s.b.Err(); err != nil {", "if err := error(nil); err != nil {",
		"TestALateTimerDoesNotHideALoss"},
	{"a commit whose reply was lost is sent again", "commit.go",
		"case string(data) == id:", "case string(data) == id && false:",
		"TestCommitOnceAppliesOnceWhateverIsLost"},
	{"Release takes a node that was deleted for one that it removed", "hold.go",
		"return &loss{path, h.deleted()}", "return nil",
		"TestReleaseLearnsThatTheNodeWasDeleted"},
	{"Release takes the end of the session for a removal", "hold.go",
		"return &loss{path, err}", "return nil",
		"TestReleaseInAPartitionAsLongAsTheSessionIsNoSuccess"},
	{"after a lost reply Release claims to know who removed the node", "hold.go",
		"case isNotFound(err) && doubt:", "case false:",
		"TestReleaseWithALostReplyIsUncertainWhenTheNodeIsGone"},
}
