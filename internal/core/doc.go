// Package core has the client and its sessions, holds, commits with a definite outcome, and clean-up. All
// recipes use it.
//
//	client.go, session.go      the client keeps one session at a time; a session ends all its holds
//	hold.go                    a hold, from its grant on
//	hold_release.go            the release of a hold: the removal of the node, and the hand-over
//	hold_loss.go               a hold ends early
//	hold_watch.go              the watch on the node of a hold, and requests to release it
//	hold_move.go               a downgrade moves a hold to another node
//	hold_guard.go              a write under the guard of a hold
//	create.go, create_joint.go a contender's node is created exactly once; the nodes of LockAll in one commit
//	commit.go                  a commit is applied exactly once, or not at all
//	cleanup.go                 the removal of nodes that a call has left when it ended early
//	kinds.go                   which recipe has a path (package kinds has the rules and the client's knowledge)
//	session_clock.go           a session learns the time of the service (package serviceclock)
//	usercode.go                calls of functions of the program
//	errors.go                  the reasons for the end of a hold, and the error of an ended context
//
// Packages of internal that need no client: the errors (errs), paths of nodes (nodepath), the events of an
// acquisition (tracing), the service's clock (serviceclock), pauses (backoff), and latest-wins channels
// (latest). Package follow, with loops over changes, is built on core.
//
// Package coord has the public types and their documentation.
//
// TestHold, TestClient, TestKind and TestGiveUp of internal/recipetest test it.
package core
