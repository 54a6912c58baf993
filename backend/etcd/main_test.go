// Package etcd_test tests package etcd on real servers: embedded members, which are processes of
// the test binary, or the etcd that COORD_ETCD names. It shows that
//
//   - each clause of the contract holds (TestTheContract), also with a proxy that loses single
//     requests and one that cuts, delays and drops bytes; random scripts have the same results
//     on memory;
//   - events come in order although replies come late, out of turn or not at all;
//   - restarts, compaction, users, TLS and a database or a disk without space are handled;
//   - sessions and locks keep their promises while the leader of three members is paused, killed
//     or cut off;
//   - calls cost the round trips that the documents say, counted by cause;
//   - the code of the page on moving from etcd's own package works.
//
// It also runs suites of the root module on etcd, built together with this module: the tests of
// recipetest and inspect, the run of chaos with faults of etcd, the cells of sweep, scenarios of
// faulttest, and the crowds of simulation. The short form runs a part of most of them:
//
//	go test .
//	COORD_LONG=1 go test -v -timeout 2h .
//	COORD_LONG=1 go test -v -timeout 30m -run 'TestTheRecipes|TestInspect' .
//
// COORD_ELSEWHERE_LOG names a file for all that the tests of the root module print.
package etcd_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	shared.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
