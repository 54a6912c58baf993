package mutants

// txnMutants are defects of transactions.
var txnMutants = []mutant{
	{"a transaction without its guards", "txn.go",
		"note(p.add(txnPart{op: \"guard\", index: i, yield: -1}, g.checks...))", "_, _ = i, g",
		"TestAStaleHolderWritesNothing"},
	{"a commit without the votes", "txn_2pc.go",
		"ops = append(ops, backend.Check(d.vote(site), backend.AnyVersion))", "_ = site",
		"TestATransactionSurvivesACrashAtEveryStep"},
	{"a decision that does not say commit is an abort", "txn_2pc.go",
		"err != nil || o.Commit == nil {", "err != nil {\n\t\treturn nil, errBadDecision\n\t}\n\tif o.Commit == nil {\n\t\to.Commit = new(bool)\n\t}\n\tif false {",
		"TestABadDecisionCostsItsTransactionOnly"},
	{"a bad decision ends Recover", "txn_2pc_status.go",
		"if errors.Is(err, ErrDecode) {\n\t\t\t// Its sites", "if false {\n\t\t\t// Its sites",
		"TestABadDecisionCostsItsTransactionOnly"},
	{"no second look before InDoubt", "txn_ballot.go",
		"if e == nil || e.Path != first.Path {", "if e = first; false {",
		"TestAServerThatLagsBehindLeavesNobodyInDoubt"},
	{"a site does not watch the record", "txn_ballot.go",
		"b.s.load(ctx, &b.txSpace, b.id, gone)", "b.s.load(ctx, &b.txSpace, b.id, nil)",
		"TestASiteInDoubtIsToldAtOnce"},
	{"an overwritten record of a commit is read again for ever", "txn_ballot.go",
		"case b.bad != nil:\n\t\treturn b.bad\n", "case b.bad != nil && o == nil:\n\t\treturn b.bad\n",
		"TestACommittedRecordThatIsOverwrittenLeavesItsSiteInDoubt"},
	{"an overwritten ballot is no vote", "txn_ballot.go",
		"b.vote = ballotYes // or an outsider", "// or an outsider",
		"TestWhatIsOverwrittenIsNoGuess"},
}
