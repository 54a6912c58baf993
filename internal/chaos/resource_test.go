//go:build linux

package chaos

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-coord/coord/internal/fence"
	"github.com/go-coord/coord/internal/proc"
)

// resourceSpec is the task of the process of the resource.
type resourceSpec struct{ Socket, History string }

// resourceMain is the process of the resource that locks protect: a register for each lock.
func resourceMain(task []byte) int {
	var spec resourceSpec
	err := json.Unmarshal(task, &spec)
	if err != nil {
		return 1
	}
	rec, err := newRecorder(spec.History)
	if err != nil {
		return 1
	}
	s, err := fence.Listen(spec.Socket, func(w fence.Write) { rec.say(written(w)) })
	if err != nil {
		return 1
	}
	new(proc.Output).Report("ok")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	s.Close()
	return 0
}

// written returns the event of a write.
func written(w fence.Write) event {
	e := event{Kind: "write", Work: w.Register, Token: w.Token, ID: w.Hold, Op: "refused"}
	if w.Accepted {
		e.Op = "accepted"
	}
	if w.Overlap {
		e.Value = "overlap"
	}
	return e
}

// write returns the write of such an event.
func (e event) write() fence.Write {
	return fence.Write{Register: e.Work, Token: e.Token, Hold: e.ID, Accepted: e.Op == "accepted", Overlap: e.Value == "overlap"}
}

// newResource starts it and returns its socket.
func newResource(t *testing.T, dir string) string {
	t.Helper()
	// The path of a socket must be short, so not in t.TempDir.
	tmp, err := os.MkdirTemp("", "coord")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	socket := filepath.Join(tmp, "s")
	w, err := proc.Start[string](resourceRole, resourceSpec{socket, filepath.Join(dir, "resource.jsonl")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Quit(limit); err != nil {
			t.Errorf("the resource: %v", err)
		}
	})
	if err := w.Await(limit, func(said []string) bool { return len(said) > 0 }); err != nil {
		t.Fatalf("the resource: %v", err)
	}
	return socket
}
