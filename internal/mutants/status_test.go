package mutants

// statusMutants are defects of what is reported on a process.
var statusMutants = []mutant{
	{"an Open that fails forgets the clients that are closed", "status/status.go",
		"\th.clients = append(h.clients, x)\n", "\th.clients = append(slices.DeleteFunc(h.clients, (*client).isClosed), x)\n",
		"TestAClosedClientIsReportedUntilAnotherIsOpen"},
	{"terms beyond the length of the list are not led", "status/status.go",
		" || slices.ContainsFunc(c.moreLeads, at)", "",
		"TestLeadsKnowsTheTermsThatTheListLacks"},
	{"the election of a namespace is asked for by its full path", "status/status.go",
		"layout.Namespace(c.Namespace).Full(path)", "layout.Namespace(\"\").Full(path)",
		"TestReport_LeadsTakesThePathBelowTheNamespace"},
	{"the namespace of a client ends in a slash", "status/client.go",
		"c.Namespace = string(ns)", "c.Namespace = string(ns) + \"/\"",
		"TestReport_LeadsTakesThePathBelowTheNamespace"},
	{"gauges of a queue lack the namespace of its client", "oteltrace/queue.go",
		"if src.Path, err = src.Client.FullPath(src.Path); err != nil {", "if _, err = src.Client.FullPath(src.Path); err != nil {",
		"TestObserveQueues_TheNamespaceOfTheClient"},
	{"a suspension is as old as an earlier one", "status/client.go",
		" && !n.since.Before(x.phase.since)", "",
		"TestEachSuspensionIsReportedSinceItBegan"},
	{"a client whose place another has taken is counted again", "oteltrace/present.go",
		"(e.Again || e.Phase == \"lost\" || e.Phase == \"closed\")", "e.Again",
		"TestAClientThatStaysLostIsCountedOnce"},
}
