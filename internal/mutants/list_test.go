package mutants

// A mutant is one defect: old is replaced by new in a file of the root package,
// where it stands exactly once.
type mutant struct {
	name     string
	file     string
	old, new string
	test     string // that must fail
}

var list = []mutant{
	// The line of locks and elections.
	{"every wake-up is taken for the grant", "line_wait.go",
		"case grants && w.before.kind() == backend.Deleted:", "case grants:",
		"TestASpuriousWakeUpGrantsNothing"},
	{"the own node is not watched", "line_wait.go",
		"targets, since = append(targets, backend.Target{Path: p.path, Watch: w.own}), p.czxid\n", "",
		"TestAWaiterWithoutANodeIsNotGranted"},
	{"what was written into the own node before it was watched is not seen", "line_wait.go",
		"Watch: w.own}), p.czxid\n", "Watch: w.own}), since\n",
		"TestAWaiterThatWasAskedBeforeItWatchedLearnsOfIt"},
	{"the node before is the head when any node ahead is gone", "line_wait.go",
		"aheadIsHead = j == 1\n", "aheadIsHead = true\n",
		"TestWhoGivesUpMakesNobodyTheHead"},
	{"the own watch is not tested at the grant", "session.go",
		"if own != nil && own.Kind() != 0 {", "if false {",
		"TestAWaiterWithoutANodeIsNotGranted"},
	{"a deleted predecessor that was not the head is the grant", "line_wait.go",
		"return l.kinds != sharedLine && j == 0", "return l.kinds != sharedLine",
		"TestTheLineInEveryOrderOfMessages"},
	{"no look-ahead", "line_wait.go",
		"case <-w.ahead.fired():", "case <-(chan struct{})(nil):",
		"TestAHandOverNeedsNoRead"},
	{"a queued writer is granted by a downgrade", "line_wait.go",
		"return l.kinds != sharedLine && j == 0", "return j == 0",
		"TestAWaitingWriterStaysOutThroughADowngrade"},
	{"the whole name orders the line", "line.go",
		"if a.seq != b.seq {", "if false {",
		"TestTheNumberAloneOrdersTheLine"},
	{"the token is the sequence number", "line.go",
		"h := &Hold{s: p.s, path: p.path, token: p.czxid,", "h := &Hold{s: p.s, path: p.path, token: int64(p.seq) + 1,",
		"TestTokensGrowWhenTheDirectoryIsMadeAnew"},

	// Nodes that may have been made.
	{"no look-up after a lost reply", "create.go",
		"sp.made = true\n", "sp.made = false\n",
		"TestALostCreateReplyLeavesExactlyOneChild"},
	{"no Sync before the look-up", "create.go",
		"if err := s.b.Sync(ctx, dir); err != nil {", "if err := error(nil); err != nil {",
		"TestALaggingReplicaDoesNotHideTheNodeThatWasMade"},
	{"who gives up leaves his node", "create.go",
		"s.disown(*sp)\n\t\t\t\treturn node{}, err\n\t\t\t}\n\t\t\tif pause", "return node{}, err\n\t\t\t}\n\t\t\tif pause",
		"TestACallerWhoGivesUpAfterALostReplyLeavesNoNode"},

	// Holds and sessions.
	{"a lost session ends no hold", "session.go",
		"h.lose(err)\n", "_ = h\n",
		"TestAPartitionedHolderIsToldBeforeAnotherIsGranted"},
	{"a hold does not compare its lease with the clock", "hold.go",
		"if err := h.s.b.Err(); err != nil {", "if err := error(nil); err != nil {",
		"TestALateTimerDoesNotHideALoss"},
	{"a commit whose reply was lost is sent again", "commit.go",
		"case string(data) == id:", "case string(data) == id && false:",
		"TestCommitOnceAppliesOnceWhateverIsLost"},

	// Elections and groups.
	{"a term that nobody received is kept", "election_leadership.go",
		"mine.Release()\n", "_ = mine\n",
		"TestATermThatNobodyReceivesIsResignedAfterOneSessionTimeout"},
	{"an observer takes another server's past for news", "election_observe.go",
		"if v.first {", "if false {",
		"TestObserveDoesNotGoBackOverALostSession"},
	{"a newcomer is refused by who has gone", "group_settle.go",
		"backend.Check(l.first.path, backend.AnyVersion), backend.Delete", "backend.Delete",
		"TestANewcomerIsRefusedOnlyByOneThatStands"},
	{"a takeover for a node that is gone", "group_settle.go",
		"ops := []backend.Op{backend.Check(own, backend.AnyVersion)}", "_ = own\n\tvar ops []backend.Op",
		"TestATakeoverRemovesNobodyForANodeThatIsGone"},

	// Values and caches.
	{"a value made anew is taken for the old one", "value_cell.go",
		"stat.Czxid == want.created && stat.Version == want.version", "stat.Version == want.version",
		"TestARecreatedValueIsAnotherOneAtTheSameVersion"},
	{"a watch tells only of another version", "value_cell.go",
		"return x.created == y.created && x.changed == y.changed", "return x.version == y.version",
		"TestAWatchTellsOfEachState"},
	{"a node that was named anew while it was read is dropped", "cache_reply.go",
		"n.state |= foundAnew", "_ = foundAnew",
		"TestANodeThatChangesBetweenItsListAndItsRead"},

	// Barriers.
	{"a round opens with members that are gone", "barrier_double_enter.go",
		"ops = append(ops, backend.Check(m.d.members+\"/\"+name, backend.AnyVersion))", "_ = name",
		"TestAMemberThatGoesAtTheLastMomentDoesNotCount"},

	// Queues.
	{"an ack does not check the claim", "queue_ack.go",
		"backend.Delete(cl.mark, backend.AnyVersion),\n", "backend.Check(cl.e.path(), backend.AnyVersion),\n",
		"TestAnAckAfterExpiryDoesNotTouchTheNextClaim"},
	{"a put into a bucket that may be closed", "queue_put.go",
		"ops = append(ops, backend.Check(target, 0))", "ops = append(ops, backend.Check(target, backend.AnyVersion))",
		"TestAPutNeverLandsInAClosedBucket"},

	// Transactions.
	{"a transaction without its guards", "txn.go",
		"note(p.add(txnPart{op: \"guard\", index: i, yield: -1}, g.checks...))", "_, _ = i, g",
		"TestAStaleHolderWritesNothing"},
	{"a commit without the votes", "txn_2pc.go",
		"ops = append(ops, backend.Check(d.vote(site), backend.AnyVersion))", "_ = site",
		"TestATransactionSurvivesACrashAtEveryStep"},
}
