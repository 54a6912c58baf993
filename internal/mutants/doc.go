// Package mutants holds a list of defects, each put into the library on purpose
// and by itself, and the name of the test that must find it. A check that nothing
// fails is no check. The defects are replacements of source text that exist in the
// build of a test only.
package mutants
