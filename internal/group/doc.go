// Package group is the engine of group membership. It writes the bytes that it is given, and decodes the
// data of members by a function that package coord gives it.
//
//	group.go    Group: its nodes and their reads, Members
//	member.go   Membership: Join, the goroutine that keeps the membership, Leave, changes of the data
//	settle.go   the rules: which of several nodes with one id is the member, and the removal of the others
//	watch.go    Watch and Wait, and the live view that Watches and Pickers share
//	picker.go   Picker: one member for each piece of work
//
// Package coord has the public types, their codecs and their documentation.
//
// TestGroup of internal/recipetest tests it.
package group
