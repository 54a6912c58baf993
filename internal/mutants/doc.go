// Package mutants holds a list of defects, each put into the library on purpose and by itself,
// and the name of the test that must detect it. A check that never fails checks nothing.
//
// A defect replaces a text of the source that occurs once. TestTheListIsTrue checks that the text
// and the test exist, TestEachMutantBuilds that each defect compiles, and TestEachMutantIsCaught
// that the test fails with it and passes without it. All defects are in one build, in which the
// environment turns one on. A defect that its test does not find there, or that is not in the
// body of a function, is put into the library alone. The source in the repository is not changed.
//
// The list does not show how many other
// defects the tests would miss. The program draw estimates that: it makes defects anywhere in the
// source by random choice and runs the tests that reach them. A defect that survives is either
// equivalent to the original, which a reader has to judge, or shows a missing test. Add that
// test, and a row to the list if the defect is dangerous.
//
//	go test ./internal/mutants                                  # two of the defects
//	COORD_LONG=1 go test -v -timeout 3h ./internal/mutants      # the whole list
//	COORD_LONG=1 go test -v -run TestEachMutantIsCaught/no_look-ahead ./internal/mutants
//	go run ./internal/mutants/draw -list -n 20 -seed 7          # what it would try
//	go run ./internal/mutants/draw -n 40 -seed 7 -in '^queue' -dir /tmp/draw
package mutants
