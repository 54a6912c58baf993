package mutants

import "slices"

// The beginnings of the names of tests that are in another package than the defect.
const (
	inRoot       = module + "."
	inRecipes    = module + "/internal/recipetest."
	inChaos      = module + "/internal/chaos."
	inHostile    = module + "/internal/hostile."
	inSimulation = module + "/internal/simulation."
	inEtcd       = module + "/backend/etcd."
	inZooKeeper  = module + "/backend/zookeeper."
)

// A mutant is one defect: old is replaced by new in a file that contains old exactly once.
// The name of the test follows the import path of its package and a dot. It has no prefix if
// the test is in the file's package. A slash and a subtest may follow, for a test that takes
// long as a whole.
type mutant struct {
	name     string
	file     string // in the repository; its folder is the package
	old, new string
	test     string // that must fail
}

// list has the mutants of all recipes, one file for each area.
var list = slices.Concat(lineMutants, keepMutants, lockAllMutants, nodeMutants, directoryMutants, holdMutants, electionMutants, valueMutants, barrierMutants, queueMutants, shardsMutants, txnMutants, backendMutants, etcdMutants, coordtestMutants, statusMutants, operatorMutants, logMutants)
