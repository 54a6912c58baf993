// Package sweep breaks each recipe of package coord at each of its requests, one at a time, on a
// real server.
//
// A recipe has a scenario with two or three clients that wait for each other, hand over and end.
// A cell of the sweep is one run of it in which one fault hits one frame that one of the clients
// sends: its n-th request, a ping, the frame that begins a connection, or the one that ends the
// session. The fault loses the request or its reply, breaks contact for a while with the request
// forwarded or not, or makes the service end the session before the request arrives or after it
// was answered.
//
// After each cell the scenario must have ended, with no errors other than the documented ones;
// the recipe's guarantees must have held; no node of it may be left while the clients are still
// open; a fresh client must succeed on the same path at once; and when the clients are closed no
// node of their sessions may be left. No stall may be longer than a bound that follows from the
// session timeout. A recipe fails if one of its kinds of faults never struck.
//
// A cell has one fault, so the sweep does not show what two faults do together;
// internal/simulation and internal/chaos do. All clients are in one process, at one server.
//
//	go test -v ./internal/sweep        # for each recipe and fault one cell, and one of the rare frames
//	COORD_LONG=1 go test -v -timeout 2h ./internal/sweep         # all cells
//	go test -v -run TestEveryRecipeStandsAFaultAtEachOfItsRequests/semaphore ./internal/sweep
//	cd backend/etcd; COORD_LONG=1 go test -v -timeout 2h -run TestEveryRecipeStandsAFaultAtEachOfItsRequestsOnEtcd
//
// The sample of the short form is the same each time unless COORD_SEED, a number, selects another
// one. With -v, COORD_CELLS=1 prints the outcome of each cell.
package sweep
