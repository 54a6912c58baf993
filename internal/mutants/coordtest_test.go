package mutants

// coordtestMutants are defects of the package for users' tests. A user's test would pass with them,
// and test nothing.
var coordtestMutants = []mutant{
	{"a lost reply arrives", "after",
		"return backend.ErrUncertain", "return err",
		"TestTheFaultsOfALinkInMemory"},
	{"a lost request arrives", "before",
		"l.breakFor(ctx, c); f.happened(); return backend.ErrUncertain", "l.breakFor(ctx, c); f.happened(); return nil",
		"TestTheFaultsOfALinkInMemory"},
	{"a fault counts the commits at a path that only begins alike", "below",
		`strings.HasPrefix(node, path+"/")`, "strings.HasPrefix(node, path)",
		"TestTheFaultsOfALinkInMemory"},
	{"two faults strike at the same commit", "count",
		"|| taken && f.left == 1", "",
		"TestTheFaultsOfALinkInMemory"},
	{"a fault that has not struck is no failure", "expire",
		"missed := !f.canceled", "missed := false",
		"TestAFaultThatDoesNotStrikeFailsTheTest"},
	{"Cut breaks nothing", "Cut",
		"c.Partition()", "",
		"TestTheFaultsOfALinkInMemory"},
	{"the end of a refusal heals a black hole too", "contact",
		"if c.refuse || c.black {", "if c.refuse {",
		"TestTheFaultsOfALinkInMemory"},
}
