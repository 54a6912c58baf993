// Package schedule is the engine of Schedule: a function is called at planned times, once in a cluster.
//
//	schedule.go    Schedule: its nodes, its state, and the calls of operators
//	timetable.go   Timetables, and the planned times around a moment
//	plan.go        decides what the leader does next; it does no I/O
//	run.go         Run: the process is a candidate, and leads
//	claim.go       a claim: its commit, the call of the function, and the commit of the outcome
//
// The state is the data of one node, and each commit changes it at the version that was read. The nodes of the claims
// are ephemeral and named by the planned time. The leader is the head of a line of package line. Package coord has the
// public types and the states of a planned time.
//
// TestSchedule of internal/recipetest tests it.
package schedule
