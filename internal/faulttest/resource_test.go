//go:build linux

package faulttest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// A resource is what the lock protects: something that is written to, in another
// process than its writers, behind a unix socket.
//
// Every write goes to two registers. The fenced one refuses a token lower than
// the highest that it has seen. The unfenced one is the control: it takes
// everything, knows no tokens, and counts the overlaps of holds. A test whose
// control sees none has not tested the fence.
type resource struct {
	socket string

	mu       sync.Mutex
	highest  int64
	accepted int
	refused  int
	writers  []string // of the unfenced register: the holds that wrote, in order, without repetition
	overlaps int
	writes   []written // in order
}

type written struct {
	token    int64
	hold     string
	accepted bool
}

// newResource returns a resource that lives as long as the test.
func newResource(t *testing.T) *resource {
	t.Helper()
	// The path of a socket must be short, so not in t.TempDir.
	dir, err := os.MkdirTemp("", "coord")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &resource{socket: filepath.Join(dir, "s")}
	l, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		conns []net.Conn
	)
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return r
}

// serve answers lines "token hold" with "accepted" or "refused".
func (r *resource) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewScanner(conn)
	for in.Scan() {
		var token int64
		var hold string
		if _, err := fmt.Sscan(in.Text(), &token, &hold); err != nil {
			return
		}
		answer := "refused\n"
		if r.write(token, hold) {
			answer = "accepted\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// write reports whether the fenced register took the write.
func (r *resource) write(token int64, hold string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unfenced(hold)
	r.writes = append(r.writes, written{token, hold, token >= r.highest})
	if token < r.highest {
		r.refused++
		return false
	}
	r.highest = token
	r.accepted++
	return true
}

// unfenced is the control. The writes of one hold must lie together: that it
// writes again after another hold did, means that both held at once.
func (r *resource) unfenced(hold string) {
	for i, w := range r.writers {
		if w == hold {
			if i < len(r.writers)-1 {
				r.overlaps++
			}
			return
		}
	}
	r.writers = append(r.writers, hold)
}

// counts returns the accepted and refused writes of the fenced register and the
// overlaps that the control saw.
func (r *resource) counts() (accepted, refused, overlaps int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted, r.refused, r.overlaps
}

// all returns all writes, in order.
func (r *resource) all() []written {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

func TestTheResourceRefusesAnOldTokenAndTheControlSeesTheOverlap(t *testing.T) {
	r := newResource(t)
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, w := range []struct {
		line, want     string
		overlaps, seen int
	}{
		{"5 a", "accepted\n", 0, 1},
		{"5 a", "accepted\n", 0, 2},
		{"7 b", "accepted\n", 0, 3},
		{"5 a", "refused\n", 1, 3},
		{"7 b", "accepted\n", 1, 4},
		{"9 c", "accepted\n", 1, 5},
		{"7 b", "refused\n", 2, 5},
	} {
		if _, err := fmt.Fprintln(conn, w.line); err != nil {
			t.Fatal(err)
		}
		got, err := answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if accepted, _, overlaps := r.counts(); got != w.want || overlaps != w.overlaps || accepted != w.seen {
			t.Errorf("%q: %q with %d accepted and %d overlaps, want %q, %d, %d", w.line, got, accepted, overlaps, w.want, w.seen, w.overlaps)
		}
	}
}
