package mutants

// nodeMutants are defects of nodes whose creation is uncertain.
var nodeMutants = []mutant{
	{"no look-up after a lost reply", "create.go",
		"sp.made = true\n", "sp.made = false\n",
		"TestALostCreateReplyLeavesExactlyOneChild"},
	{"no Sync before the look-up", "create.go",
		"if err := s.b.Sync(ctx, dir); err != nil {", "if err := error(nil); err != nil {",
		"TestALaggingReplicaDoesNotHideTheNodeThatWasMade"},
	{"who gives up leaves his node", "create.go",
		"s.disown(*sp).wait(s, sp.dir)\n\t\t\t\treturn node{}, err\n\t\t\t}\n\t\t\tif pause", "return node{}, err\n\t\t\t}\n\t\t\tif pause",
		"TestACallerWhoGivesUpAfterALostReplyLeavesNoNode"},
	{"who gives up looks once for what it may have made", "create.go",
		"looks < 2 || found", "looks < 1 || found",
		"TestACreationThatComesAfterTheLookIsRemoved"},
}
