// Package mutants holds a list of defects, each put into the library on purpose and by itself,
// and the name of the test that must detect it. A check that never fails checks nothing.
//
// A defect replaces words of a declaration that are there once. Words are compared as syntax, and
// without the package of a name: a row fits as before when its declaration moves to another file
// or package, is exported, or is formatted in another way. TestTheListIsTrue checks that the words
// and the test exist, TestEachMutantBuilds that each defect compiles, and TestEachMutantIsCaught
// that the test fails with it and passes without it. All defects are in one build, in which the
// environment turns one on. A defect that its test does not find there, or that is not in the
// body of a function, is put into the library alone. The source in the repository is not changed.
//
// Two defects are tried at a time. A test that a defect makes wait for ever is ended after half a
// minute and five times the time that it takes without the defect.
//
// The list does not show how many other defects the tests would miss. The program draw estimates
// that: it makes defects anywhere in the source by random choice and runs the tests that reach
// them. A defect that survives is either equivalent to the original, which a reader has to judge,
// or shows a missing test. Add that test, and a row to the list if the defect is dangerous.
//
//	go test ./internal/mutants                                  # two of the defects
//	COORD_LONG=1 go test -v -timeout 3h ./internal/mutants      # the whole list
//	COORD_LONG=1 go test -v -run TestEachMutantIsCaught/no_look-ahead ./internal/mutants
//	go run ./internal/mutants/draw -list -n 20 -seed 7          # what it would try
//	go run ./internal/mutants/draw -n 40 -seed 7 -in '^queue' -dir /tmp/draw
package mutants
