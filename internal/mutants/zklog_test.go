package mutants

// zklogMutants are defects in the reading of the servers' logs, by which the chaos run judges.
var zklogMutants = []mutant{
	{"a leader that no majority follows ends an epoch", "Starts",
		"last = z", "last, starts[z>>32+1] = z, z",
		"TestAnEpochBeginsWhereItsLeaderHadAMajority"},
	{"a transaction that two servers have is committed", "Merge",
		"end = start", "for end = start; known[end+1].Zxid != 0; { end++ }",
		"TestTheLogsOfServersAreMergedWithoutHoles"},
	{"a transaction of one server ends the last epoch", "Merge",
		"twice {", "twice || true {",
		"TestTheLogsOfServersAreMergedWithoutHoles"},
	{"a leader may write what its tree refuses", "Replay",
		"case is == nil:", "case is == nil && op.Type != Check:",
		"TestAReplayFindsWhatATreeRefuses"},
	{"a server may have a node that its latest transaction deleted", "Outdated",
		"last.Until <= s.Zxid", "last.Until < s.Zxid",
		"TestASnapshotHasTheStatesOfTheHistory"},
	{"a server may have a deleted node that was changed later", "Outdated",
		"p.Mzxid <= is.Mzxid", "p.Mzxid == is.Mzxid",
		"TestASnapshotHasTheStatesOfTheHistory"},
}
