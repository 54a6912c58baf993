package backendtest

// groups returns the whole contract, subject by subject.
func groups() []group {
	return []group{
		{"create", createLeaves()},
		{"sequence", sequenceLeaves()},
		{"versions", versionLeaves()},
		{"delete", deleteLeaves()},
		{"stat", statLeaves()},
		{"data", dataLeaves()},
		{"ephemeral", ephemeralLeaves()},
		{"atomic", atomicLeaves()},
		{"order", orderLeaves()},
		{"watch", watchLeaves()},
		{"arm", armLeaves()},
		{"arm in trouble", armTroubleLeaves()},
		{"watch order", watchOrderLeaves()},
		{"watch stop", watchStopLeaves()},
		{"watch after a break", watchBreakLeaves()},
		{"tree", treeLeaves()},
		{"tree in trouble", treeTroubleLeaves()},
		{"read many", manyLeaves()},
		{"session", sessionLeaves()},
		{"loss", lossLeaves()},
		{"context", contextLeaves()},
		{"lost packets", faultLeaves()},
		{"close", closeLeaves()},
		{"limits", limitLeaves()},
		{"paths", pathLeaves()},
		{"concurrency", concurrencyLeaves()},
	}
}
