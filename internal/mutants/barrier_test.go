package mutants

// barrierMutants are defects of barriers.
var barrierMutants = []mutant{
	{"a round opens with members that are gone", "barrier_double_enter.go",
		"ops = append(ops, backend.Check(m.d.members+\"/\"+name, backend.AnyVersion))", "_ = name",
		"TestAMemberThatGoesAtTheLastMomentDoesNotCount"},
	{"Enter returns before its node is gone", "barrier_double_enter.go",
		"}).madeFor(prefix).wait(s, d.members)", "}).madeFor(prefix).note(d.members)",
		"TestAnEntrantThatGaveUpIsNotCounted"},
	{"Enter meets what an earlier one has left", "cleanup.go",
		"list = slices.DeleteFunc(list, func(u *cleanUp) bool { return u.of == own })", "list = nil",
		"TestAnEntrantNeverMeetsItsOwnGhost"},
	{"Enter does not wait for a removal that is refused", "cleanup.go",
		"over = u.done\n", "",
		"TestAnEntrantNeverMeetsItsOwnGhost"},
	{"one that waits counts what another call has left meanwhile", "barrier_double_enter.go",
		"m.d.c.awaitCleanUps(ctx, m.d.members, m.prefix)", "error(nil)",
		"TestAnEntrantThatWaitsDoesNotCountAGhost"},
	{"one that comes anew waits for its own node of the lost session", "cleanup.go",
		"return u.of == own })", "return false })",
		"TestAMemberThatComesAnewCountsOnce"},
	{"what a lost session has left is not removed over the next one", "barrier_double_enter.go",
		"d.overNext(ctx, func(next *session) {", "_ = (func(next *session) {",
		"TestAnEntrantNeverMeetsItsOwnGhost"},
	{"a removal on a session that is lost in turn counts", "barrier_double_enter.go",
		"return struct{}{}, s.b.Err()", "return struct{}{}, nil",
		"TestAnEntrantNeverMeetsAGhostOfTwoSessionsAgo"},
}
