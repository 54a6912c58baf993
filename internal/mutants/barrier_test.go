package mutants

// barrierMutants are defects of barriers.
var barrierMutants = []mutant{
	{"a round opens with members that are gone", "barrier_double_enter.go",
		"ops = append(ops, backend.Check(m.d.members+\"/\"+name, backend.AnyVersion))", "_ = name",
		"TestAMemberThatGoesAtTheLastMomentDoesNotCount"},
}
