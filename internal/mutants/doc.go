// Package mutants holds a list of defects, each put into the library on purpose and by
// itself, and the name of the test that must detect it. A check that never fails checks
// nothing. The defects are replacements of source text that exist only in the build of a
// test.
package mutants
