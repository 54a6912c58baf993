package mutants

import "slices"

// A mutant is one defect: old is replaced by new in a file that contains old exactly once.
// The test is in the file's package or in the root.
type mutant struct {
	name     string
	file     string
	old, new string
	test     string // that must fail
}

// list has the mutants of all recipes, one file for each area.
var list = slices.Concat(lineMutants, nodeMutants, holdMutants, electionMutants, valueMutants, barrierMutants, queueMutants, txnMutants, backendMutants)
