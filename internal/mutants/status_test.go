package mutants

// statusMutants are defects of the report on a process.
var statusMutants = []mutant{
	{"an Open that fails forgets the clients that are closed", "status/status.go",
		"\th.clients = append(h.clients, x)\n", "\th.clients = append(slices.DeleteFunc(h.clients, (*client).isClosed), x)\n",
		"TestAClosedClientIsReportedUntilAnotherIsOpen"},
	{"terms beyond the length of the list are not led", "status/status.go",
		" || slices.ContainsFunc(c.moreLeads, at)", "",
		"TestLeadsKnowsTheTermsThatTheListLacks"},
	{"a suspension is as old as an earlier one", "status/client.go",
		" && !n.since.Before(x.phase.since)", "",
		"TestEachSuspensionIsReportedSinceItBegan"},
}
