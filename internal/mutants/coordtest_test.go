package mutants

// coordtestMutants are defects of the package for users' tests. A user's test would pass with them,
// and test nothing.
var coordtestMutants = []mutant{
	{"a lost reply arrives", "coordtest/link.go",
		"\treturn backend.ErrUncertain\n}\n\n// breakFor", "\treturn err\n}\n\n// breakFor",
		"TestTheFaultsOfALinkInMemory"},
	{"a lost request arrives", "coordtest/link.go",
		"\tl.breakFor(ctx, c)\n\tf.happened()\n\treturn backend.ErrUncertain\n}\n\n// after", "\tl.breakFor(ctx, c)\n\tf.happened()\n\treturn nil\n}\n\n// after",
		"TestTheFaultsOfALinkInMemory"},
	{"a fault counts the commits at a path that only begins alike", "coordtest/link.go",
		"strings.HasPrefix(node, path+\"/\")", "strings.HasPrefix(node, path)",
		"TestTheFaultsOfALinkInMemory"},
	{"two faults strike at the same commit", "coordtest/fault.go",
		" || taken && f.left == 1", "",
		"TestTheFaultsOfALinkInMemory"},
	{"a fault that has not struck is no failure", "coordtest/fault.go",
		"missed := !f.canceled", "missed := false",
		"TestAFaultThatDoesNotStrikeFailsTheTest"},
	{"Cut breaks nothing", "coordtest/memory.go",
		"\t\tc.Partition()\n\t\tc.Heal()\n\t}\n}\n\nfunc (c *memoryConnection) Refuse", "\t\tc.Heal()\n\t}\n}\n\nfunc (c *memoryConnection) Refuse",
		"TestTheFaultsOfALinkInMemory"},
	{"the end of a refusal heals a black hole too", "coordtest/memory.go",
		"if c.refuse || c.black {", "if c.refuse {",
		"TestTheFaultsOfALinkInMemory"},
}
