package mutants

// electionMutants are defects of elections and groups.
var electionMutants = []mutant{
	{"Observe keeps what it has armed before", "election_observe.go",
		"v.renew()", "_ = v.renew",
		"TestObserveKeepsTwoWatches"},
	{"a term that nobody received is kept", "election_leadership.go",
		"mine.Release()\n", "_ = mine\n",
		"TestATermThatNobodyReceivesIsResignedAfterOneSessionTimeout"},
	{"an observer takes another server's past for news", "election_observe.go",
		"if v.first {", "if false {",
		"TestObserveDoesNotGoBackOverALostSession"},
	{"a term that nobody received by the end of the context is kept", "election_leadership.go",
		"return mine\n", "return nil\n",
		"TestTheEndOfTheContextResignsOnlyWhatWasNotReceived"},
	{"Leave ends the requests of a member that joins again", "group_member.go",
		"m.enter(ctx, context.WithoutCancel(ctx), false)", "m.enter(ctx, ctx, false)",
		"TestALeaveDuringARejoinLeavesNoNode"},
	{"a newcomer is refused by who has gone", "group_settle.go",
		"backend.Check(l.first.path, backend.AnyVersion), backend.Delete", "backend.Delete",
		"TestANewcomerIsRefusedOnlyByOneThatStands"},
	{"a takeover for a node that is gone", "group_settle.go",
		"ops := []backend.Op{backend.Check(own, backend.AnyVersion)}", "_ = own\n\tvar ops []backend.Op",
		"TestATakeoverRemovesNobodyForANodeThatIsGone"},
}
