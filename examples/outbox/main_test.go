package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
)

// The test binary is also the programs, see start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "outbox" {
		os.Args = os.Args[1:]
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// A transaction is repeated only where a new plan can succeed, or the loop of a booking would not end.
func TestAgain(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"a bucket was closed", &coord.ConflictError{Op: "put", Err: coord.ErrBadVersion}, true},
		{"the hold of a guard has ended", &coord.ConflictError{Op: "guard", Err: coord.ErrNotFound}, false},
		{"the claim is lost", &coord.ConflictError{Op: "ack", Err: coord.ErrLost}, false},
		{"no contact", coord.ErrNoContact, false},
	} {
		if got := again(test.err); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}
