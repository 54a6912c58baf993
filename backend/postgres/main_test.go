// Package postgres_test tests package postgres on real servers, which package pgtest starts. It shows that
//
//   - each clause of the contract holds, with a proxy for each link that cuts it and loses requests and
//     replies; random scripts have the same results on memory;
//   - calls cost the round trips that they cost on ZooKeeper, counted by cause;
//   - leases, locks and commits keep their promises while the server crashes, hangs, or is replaced by
//     its synchronous standby;
//   - transactions of users depend on holds, and carry commits.
//
// It also runs suites of the root module on PostgreSQL, built together with this module: the tests of
// recipetest and inspect, the run of chaos with faults of PostgreSQL, the cells of sweep, and the crowds
// of simulation. The short form runs a part of most of them:
//
//	go test .
//	COORD_LONG=1 go test -v -timeout 3h .
//	COORD_LONG=1 go test -v -timeout 40m -run 'TestTheRecipes|TestInspect' .
//	COORD_CHAOS=10m go test -v -timeout 30m -run TestChaos .
//
// COORD_ELSEWHERE_LOG names a file for all that the tests of the root module print.
package postgres_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// shared is the server of all tests that do not break it. Without fsync a busy disk does not delay
// leases; no test ends the machine.
var shared = pgtest.Shared{Options: &pgtest.Options{Settings: map[string]string{"fsync": "off", "max_connections": "300", "max_prepared_transactions": "5"}}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
