package mutants

// txnMutants are defects of transactions.
var txnMutants = []mutant{
	{"a transaction without its guards", "txn.go",
		"note(p.add(txnPart{op: \"guard\", index: i, yield: -1}, g.checks...))", "_, _ = i, g",
		"TestAStaleHolderWritesNothing"},
	{"a commit without the votes", "txn_2pc.go",
		"ops = append(ops, backend.Check(d.vote(site), backend.AnyVersion))", "_ = site",
		"TestATransactionSurvivesACrashAtEveryStep"},
}
