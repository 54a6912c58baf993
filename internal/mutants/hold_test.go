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
}
