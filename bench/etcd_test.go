package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Three servers of etcd run without an etcd that is installed, and end with the cluster.
func TestEtcdNeedsNoInstallation(t *testing.T) {
	t.Setenv("PATH", "/none")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x, err := startEtcd(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := x.client(x.addrs)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.MemberList(ctx)
	if err != nil || len(r.Members) != 3 {
		t.Errorf("members %v, %v", r, err)
	}
	s, err := c.Status(ctx, x.addrs[0])
	if err != nil || s.Version != x.version || !strings.HasPrefix(x.version, "3.6.") {
		t.Errorf("version %q, status %v, %v", x.version, s, err)
	}
	if _, known := x.processors(); !known {
		t.Error("the processor time of the servers is not known")
	}
	if n, known := x.requests(ctx); !known || n == 0 {
		t.Errorf("the servers have received %v requests", n)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

func TestAMemberRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"m0", t.TempDir(), ":", "http://127.0.0.1:1", "m0=http://127.0.0.1:1"}} {
		var notes strings.Builder
		if code := serveMember(args, &notes); code != 1 || !strings.Contains(notes.String(), memberVerb) {
			t.Errorf("%q: exit code %d, %s", args, code, notes.String())
		}
	}
}
