package mutants

// valueMutants are defects of values, counters and caches.
var valueMutants = []mutant{
	{"errors of a type's own decoding are shown", "codec.go",
		"return &untold{err}", "return err",
		"TestNoErrorQuotesAValue"},
	{"a value made anew is taken for the old one", "value_cell.go",
		"stat.Czxid == want.created && stat.Version == want.version", "stat.Version == want.version",
		"TestARecreatedValueIsAnotherOneAtTheSameVersion"},
	{"a watch tells only of another version", "value_cell.go",
		"return x.created == y.created && x.changed == y.changed", "return x.version == y.version",
		"TestAWatchTellsOfEachState"},
	{"a node that was named anew while it was read is dropped", "cache_reply.go",
		"n.state |= foundAnew", "_ = foundAnew",
		"TestANodeThatChangesBetweenItsListAndItsRead"},
	{"the children of a service's root have two slashes", "cache_reply.go",
		"if parent.path != \"/\" {", "if true {",
		"TestACacheOfTheRootHasTheWholeTree"},
	{"a node that no commit has made is none", "cache_tree.go",
		"return nodeVersion{true, ", "return nodeVersion{n.stat.Czxid != 0, ",
		"TestACacheOfTheRootHasTheWholeTree"},
}
