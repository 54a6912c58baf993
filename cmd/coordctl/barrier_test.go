//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// TestALookAtABarrierNeverWaits: barrier wait --wait 0 and barrier status agree with the waiters on which nodes are
// barriers, whichever program has made them.
func TestALookAtABarrierNeverWaits(t *testing.T) {
	node := func(path, data string) backend.Op { return backend.Create(path, []byte(data), backend.Persistent) }
	const pass, other = 0, -1 // -1: an error without a status of its own
	for _, tc := range []struct {
		name   string
		nodes  []backend.Op
		wait   int // the exit status of barrier wait --wait 0
		status int // that of barrier status
		says   string
	}{
		{"nothing", nil, pass, exitNo, "/b: not set"},
		{"a barrier", []backend.Op{node("/b", string(layout.KindBarrier.Mark()))}, exitLate, 0, "/b: set, since"},
		{"a barrier of Curator", []backend.Op{node("/b", "10.0.0.1")}, exitLate, 0, "/b: set, by the node of another program: value"},
		{"a directory", []backend.Op{node("/b", ""), node("/b/c", "")}, pass, exitNo, "/b: not set"},
		{"a directory that was used", []backend.Op{node("/b", ""), node("/b/c", ""), backend.Delete("/b/c", 0)}, pass, exitNo, "/b: not set"},
		{"a barrier of kazoo", []backend.Op{node("/b", "")}, exitLate, 0, "/b: set, since"},
		{"a directory that coord has made", []backend.Op{node("/b", string(layout.KindDirectory.Mark()))}, pass, exitNo, "/b: not set"},
		{"a value", []backend.Op{node("/b", "some text")}, other, exitNo, "is not a barrier; found value"},
		{"a double barrier that is not in use", []backend.Op{node("/b", string(layout.KindDoubleBarrier.Mark()))}, other, exitNo, "/b: not set"},
		{"a mutex that is not in use", []backend.Op{node("/b", string(layout.KindMutex.Mark()))}, other, exitNo, "is not a barrier; found empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			x, c := within(t, &out)
			x.path, x.wait = "/b", 0
			s, err := c.Session(t.Context())
			if err == nil && tc.nodes != nil {
				for _, op := range tc.nodes {
					if _, err = s.Commit(t.Context(), op); err != nil {
						break
					}
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), short)
			defer cancel()
			err = x.await(ctx, func(ctx context.Context) error { return x.awaitBarrier(ctx, c) })
			var kind *coord.KindError
			if ok := (err == nil) == (tc.wait == pass) && (tc.wait != exitLate || status(err) == exitLate) && (tc.wait != other || errors.As(err, &kind)); !ok {
				t.Errorf("wait: %v, want the status %d", err, tc.wait)
			}
			err = x.barrierStatus(ctx, c)
			text := out.String()
			if err != nil {
				text += err.Error()
			}
			if (err == nil) != (tc.status == 0) || err != nil && status(err) != tc.status || !strings.Contains(text, tc.says) {
				t.Errorf("status: %v, want %d with %q:\n%s", err, tc.status, tc.says, text)
			}
		})
	}
}
