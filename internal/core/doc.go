// Package core is what all recipes stand on: the client and its sessions, what can be lost (Hold),
// writes with a definite outcome, and clean-up.
//
//	client.go, session.go      the client keeps one session at a time; a session ends all its holds
//	hold.go                    a hold, from its grant on
//	hold_release.go            its holder releases it: the removal of the node, and the hand-over
//	hold_loss.go               it ends early
//	hold_watch.go              the watch on its node, and requests to release it
//	hold_move.go               a downgrade moves it to another node
//	hold_guard.go              a write under its guard
//	create.go, create_joint.go a contender's node is created exactly once; those of LockAll in one commit
//	commit.go                  a commit is applied exactly once, or not at all
//	cleanup.go                 what a call that ended early has left
//	kinds.go                   which recipe has a path (the rules, and what the client knows, are in internal/kinds)
//	session_clock.go           a session learns the time of the service (internal/serviceclock)
//
// What needs no client is beside it: the errors (errs), paths of nodes (nodepath), the events of an
// acquisition (tracing), what is known of the service's clock (serviceclock), pauses (backoff), and
// latest-wins channels (latest). Loops over changes are above it (follow).
//
// Package coord has the public types and their documentation.
//
// TestHold, TestClient, TestKind and TestGiveUp of internal/recipetest test it.
package core
