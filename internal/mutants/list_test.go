package mutants

import "slices"

// A mutant is one defect: the words of new replace the words of old, which occur once in the declaration.
//
// The declaration is a function or method, a constant, a variable or a type. decl is its name. If several
// declarations of that name contain the words of old, decl begins with the package, as in errs.OfContext.
// The name of a method stands without its type, which often gets another name in a move.
//
// Old is compared word by word. A word is a token, and a name with the name of our package that
// qualifies it: settle, Settle and queue.Settle are the same word. Comments, line breaks and
// semicolons are not compared. New is source text; a name that is in old as well becomes what it
// is in the source.
//
// The test is a function, whose name has its package in front if it is in several. A slash and a
// subtest may follow, for a test that takes long as a whole.
type mutant struct {
	name     string
	decl     string
	old, new string
	test     string // that must fail
}

// list has the mutants of all recipes, one file for each area.
var list = slices.Concat(lineMutants, keepMutants, lockAllMutants, nodeMutants, directoryMutants, holdMutants, electionMutants, valueMutants, barrierMutants, queueMutants, shardsMutants, scheduleMutants, txnMutants, backendMutants, etcdMutants, postgresMutants, fenceMutants, coordtestMutants, statusMutants, operatorMutants, superviseMutants, zklogMutants, adapterMutants)
