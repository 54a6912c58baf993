package mutants

// statusMutants are defects of what is reported on a process.
var statusMutants = []mutant{
	{"the late report of an earlier run hides the outcome of the latest", "ran",
		"cmp.Or(e.Planned.Compare(s.planned), cmp.Compare(e.Attempt, s.attempt)) >= 0", "cmp.Compare(e.Attempt, s.attempt) >= 0",
		"TestSchedule_ALateReportOfAnEarlierRunIsNotTheLatestOutcome"},
	{"an Open that fails forgets the clients that are closed", "Open",
		"h.clients = append(h.clients, x)", "h.clients = append(slices.DeleteFunc(h.clients, (*client).isClosed), x)",
		"TestAClosedClientIsReportedUntilAnotherIsOpen"},
	{"terms beyond the length of the list are not led", "Leads",
		"|| slices.ContainsFunc(c.moreLeads, at)", "",
		"TestLeadsKnowsTheTermsThatTheListLacks"},
	{"the election of a namespace is asked for by its full path", "Leads",
		"layout.Namespace(c.Namespace).Full(path)", `layout.Namespace("").Full(path)`,
		"TestReport_LeadsTakesThePathBelowTheNamespace"},
	{"the namespace of a client ends in a slash", "report",
		"c.Namespace = string(ns)", `c.Namespace = string(ns) + "/"`,
		"TestReport_LeadsTakesThePathBelowTheNamespace"},
	{"gauges of a queue lack the namespace of its client", "ObserveQueues",
		"if src.Path, err = src.Client.FullPath(src.Path); err != nil {", "if _, err = src.Client.FullPath(src.Path); err != nil {",
		"TestObserveQueues_TheNamespaceOfTheClient"},
	{"a suspension is as old as an earlier one", "isNoticed",
		"&& !n.since.Before(x.phase.since)", "",
		"TestEachSuspensionIsReportedSinceItBegan"},
	{"a client whose place another has taken is counted again", "changed",
		`(e.Again || e.Phase == "lost" || e.Phase == "closed")`, "e.Again",
		"TestAClientThatStaysLostIsCountedOnce"},
}
