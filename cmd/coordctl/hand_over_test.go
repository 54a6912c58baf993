//go:build linux

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/go-coord/coord"
)

// The leader learns of the request, and the next candidate leads when it has resigned.
func TestRevokeAsksALeaderToResign(t *testing.T) {
	var out bytes.Buffer
	x, c := within(t, &out)
	x.path, x.by, x.reason = "/leaders/report", "operator", "upgrade"
	term, err := coord.NewElection(c, x.path, &coord.ElectionOptions{ID: "web-1"}).Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-term.Revoked()
		term.Release()
	}()
	if err := x.revoke(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if term.Err() == nil || !strings.Contains(out.String(), "web-1 released it") {
		t.Errorf("the term: %v; printed %q", term.Err(), out.String())
	}
}

// The reason of each server stands on stderr before the client has given up.
func TestCheckPrintsWhyEachServerFails(t *testing.T) {
	for _, backend := range []string{"zookeeper", "etcd"} {
		var errs bytes.Buffer
		args := []string{"-backend", backend, "-servers", "127.0.0.1:1,127.0.0.1:2", "-wait", "100ms", "check"}
		if got := run(args, strings.NewReader(""), io.Discard, &errs, nil); got == 0 {
			t.Errorf("%s: status 0", backend)
		}
		lines := strings.Split(errs.String(), "\n")
		if len(lines) < 3 || !strings.HasPrefix(lines[0], "coordctl: 127.0.0.1:1: ") || !strings.HasPrefix(lines[1], "coordctl: 127.0.0.1:2: ") ||
			!strings.Contains(lines[0], "refused") || !strings.Contains(lines[1], "refused") {
			t.Errorf("%s: printed %q", backend, errs.String())
		}
	}
}
