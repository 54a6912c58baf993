// Package sweep breaks each recipe of package coord at each of its requests, one
// at a time, on a real ZooKeeper.
//
// A recipe has a scenario with two or three clients that wait for each other, hand over and
// end. A cell of the sweep is one run of it in which one fault hits one frame that one of the
// clients sends: its n-th request, a ping, the frame that begins a connection, or the one
// that ends the session. The fault loses the request or its reply, breaks contact for a while
// with the request forwarded or not, or makes the service end the session before the request
// arrives or after it was answered.
// was answered.
// After each cell the scenario must have ended, with no errors other than the documented
// ones; the recipe's guarantees must have held; no node of it may be left while the clients
// are still open; a fresh client must succeed on the same path at once; and when the clients
// are closed no node of their sessions may be left. No stall may be longer than a bound that
// follows from the session timeout.
//
// Without COORD_LONG=1 a sample of the cells is run. It is the same each time unless
// COORD_SEED, a number, selects another one.
package sweep
