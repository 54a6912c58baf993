//go:build linux

package interop

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A room is the resource that the locks protect: only one visitor at a time is allowed. A
// visitor sends "enter NAME NODE" and "leave NAME CZXID" and waits for the answer to each.
// The room runs in another process than its visitors. In between they ask the server for
// their node, so a visit takes a while.
//
// Between the two a visitor has the lock, if the lock works. So overlapping visits are
// violations, and the order of visits is the order of grants.
type room struct {
	addr string

	mu       sync.Mutex
	inside   []string // the visitors
	turns    map[string]int
	overlaps int
	number   int64 // of the latest visitor's node
	czxid    int64 // of the latest visitor's node
	wrong    []string
}

// newRoom returns a room that lives as long as the test.
func newRoom(t *testing.T) *room {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &room{addr: l.Addr().String(), turns: make(map[string]int), number: -1}
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

func (r *room) serve(conn net.Conn) {
	defer conn.Close()
	for in := bufio.NewScanner(conn); in.Scan(); {
		r.hear(in.Text())
		if _, err := io.WriteString(conn, "ok\n"); err != nil {
			return
		}
	}
}

func (r *room) hear(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	words := strings.Fields(line)
	if len(words) != 3 {
		r.complain("invalid line %q", line)
		return
	}
	name := words[1]
	switch i := slices.Index(r.inside, name); {
	case words[0] == "enter" && i < 0:
		if len(r.inside) > 0 {
			r.overlaps++
		}
		r.inside = append(r.inside, name)
		r.turns[name]++
		number, ok := numberOf(words[2])
		if !ok || number <= r.number {
			r.complain("%s came with %s after number %d", name, words[2], r.number)
		}
		r.number = max(r.number, number)
	case words[0] == "leave" && i >= 0:
		r.inside = slices.Delete(r.inside, i, i+1)
		czxid, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil || czxid <= r.czxid {
			r.complain("%s had token %s after %d", name, words[2], r.czxid)
		}
		r.czxid = max(r.czxid, czxid)
	default:
		r.complain("%q with %v inside", line, r.inside)
	}
}

// complain keeps the first few complaints. The caller holds mu.
func (r *room) complain(format string, args ...any) {
	if len(r.wrong) < 5 {
		r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
	}
}

// state returns the turns of all and by visitor, the overlaps, and other violations.
func (r *room) state() (total int, turns string, overlaps int, wrong string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for name, n := range r.turns {
		total += n
		list = append(list, fmt.Sprintf("%s %d", name, n))
	}
	slices.Sort(list)
	return total, strings.Join(list, ", "), r.overlaps, strings.Join(r.wrong, "; ")
}

// visitors returns the number of visitors inside.
func (r *room) visitors() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.inside)
}

func (r *room) turnsOf(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.turns[name]
}

// numberOf returns the number at the end of a sequential node's name. It does not use the
// code under test.
func numberOf(node string) (int64, bool) {
	const digits = 10
	if len(node) < digits {
		return 0, false
	}
	var n int64
	for _, c := range node[len(node)-digits:] {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

func TestTheRoomSeesOverlapsAndTheOrderOfNumbers(t *testing.T) {
	for _, c := range []struct {
		name     string
		lines    []string
		overlaps int
		wrong    bool
	}{
		{"one after the other", []string{"enter a /x/n0000000001", "leave a 5", "enter b /x/n0000000003", "leave b 9"}, 0, false},
		{"two at a time", []string{"enter a /x/n0000000001", "enter b /x/n0000000003", "leave a 5", "leave b 9"}, 1, false},
		{"numbers out of order", []string{"enter a /x/n0000000003", "leave a 5", "enter b /x/n0000000001"}, 0, true},
		{"tokens out of order", []string{"enter a /x/n0000000001", "leave a 9", "enter b /x/n0000000002", "leave b 5"}, 0, true},
		{"one node twice", []string{"enter a /x/n0000000001", "leave a 5", "enter a /x/n0000000001"}, 0, true},
		{"no number", []string{"enter a /x/n"}, 0, true},
		{"a leave without a visitor", []string{"leave a 5"}, 0, true},
		{"nonsense", []string{"enter a"}, 0, true},
	} {
		r := newRoom(t)
		for _, line := range c.lines {
			r.hear(line)
		}
		if _, _, overlaps, wrong := r.state(); overlaps != c.overlaps || (wrong != "") != c.wrong {
			t.Errorf("%s: %d overlaps, complaints %q", c.name, overlaps, wrong)
		}
	}
}
