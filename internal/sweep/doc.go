// Package sweep breaks each recipe of package coord at each of its requests, one
// at a time, on a real ZooKeeper.
//
// A recipe has a scenario with two or three clients that wait for each other, hand
// over and end. A cell of the sweep is one play of it in which one fault befalls
// one frame that one of the clients sends: its n-th request, a ping, the frame that
// begins a connection, or the one that ends the session. The fault loses the
// request or its reply, breaks contact for a while with the request forwarded or
// not, or has the service end the session before the request arrives or after it
// was answered.
//
// After each cell the scenario has come to its end, with no other errors than those
// that are documented for it; what the recipe promises has held; nothing is left of
// it while the clients still live; a fresh client comes through on the same path at
// once; and when the clients are closed nothing of their sessions is left. No stall
// was longer than a bound that follows from the session timeout.
//
// Without COORD_LONG=1 a sample of the cells is played. It is the same each time, but
// for COORD_SEED, which is a number.
package sweep
