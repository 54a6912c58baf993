package mutants

// logMutants are defects in the reading of the servers' logs, by which the chaos run judges.
var logMutants = []mutant{
	{"a leader that no majority follows ends an epoch", "internal/zklog/merge.go",
		"			last = z\n", "			last, starts[z>>32+1] = z, z\n",
		"TestAnEpochBeginsWhereItsLeaderHadAMajority"},
	{"a transaction that two servers have is committed", "internal/zklog/merge.go",
		"		end = start\n", "		for end = start; known[end+1].Zxid != 0; {\n			end++\n		}\n",
		"TestTheLogsOfServersAreMergedWithoutHoles"},
	{"a transaction of one server ends the last epoch", "internal/zklog/merge.go",
		"; twice {", "; twice || true {",
		"TestTheLogsOfServersAreMergedWithoutHoles"},
	{"a leader may write what its tree refuses", "internal/zklog/replay.go",
		"			case !ok:\n", "			case !ok && op.Type != Check:\n",
		"TestAReplayFindsWhatATreeRefuses"},
}
