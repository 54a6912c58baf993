package zookeeper

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// eventOf returns the frame of an event.
func eventOf(kind int32, path string) []byte {
	return framed(str(be.AppendUint32(be.AppendUint32(reply(xidEvent, 0), uint32(kind)), 3), path))
}

// An event is handled under the lock of the hub, which every call with a watch, and the end of the
// session, need too.
func TestLongFrame_AnEventCostsNoMoreThanItsLength(t *testing.T) {
	tops := []string{"/", "/a", "/a/a/a", "/a/" + strings.Repeat("b", 200)}
	for i := range 50 {
		tops = append(tops, fmt.Sprint("/caches/", i))
	}
	deep := strings.Repeat("/a", 1<<18)
	took := func(f func()) time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	}
	control := took(func() {
		for range 100 {
			path.Clean(deep) // looks once at each byte
		}
	})
	fastest := time.Duration(math.MaxInt64) // a busy machine interrupts some of them
	for range 3 {
		s := newHub()
		for _, top := range tops {
			w := backend.NewTreeWatch(0)
			x := &tree{path: top, adding: 1, watches: make(map[*backend.TreeWatch]struct{})}
			s.trees[top] = x
			s.longest = max(s.longest, len(top))
			s.added(x, w, true)
			defer w.Stop()
		}
		fastest = min(fastest, took(func() { s.event(event{kind: eventCreated, path: deep, zxid: 1}) }))
	}
	t.Logf("%v, and the control %v", fastest, control)
	if fastest > control {
		t.Errorf("an event with a path of %d bytes took %v, and looking 100 times at each byte %v", len(deep), fastest, control)
	}
}

func TestLongFrame_TheTreesAboveAnEvent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		path string
		most int
		want string
	}{
		{"/", 0, "/"}, {"/", 5, "/"}, {"/a", 2, "/a"}, {"/a", 1, "/"}, {"/a", 0, "/"},
		{"/a/b", 4, "/a/b"}, {"/a/b", 3, "/a"}, {"/a/b", 2, "/a"}, {"/a/b", 1, "/"},
		{"/abc/d", 3, "/"}, {"/abc/d", 4, "/abc"}, {"/abc/d", 5, "/abc"},
	} {
		if got := ancestor(test.path, test.most); got != test.want {
			t.Errorf("the ancestor of %q with at most %d bytes is %q, want %q", test.path, test.most, got, test.want)
		}
	}
}

// A reply or an event that is longer than it can be ends the connection before it is read.
func TestLongFrame_IsRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("/a", 1<<20)
	for name, frame := range map[string]func(r []byte) []byte{
		"an event":                  func([]byte) []byte { return eventOf(eventCreated, long) },
		"an event without a path":   func([]byte) []byte { return eventOf(eventCreated, "") },
		"an event of a relative":    func([]byte) []byte { return eventOf(eventDeleted, "a/b") },
		"the path of a new node":    func(r []byte) []byte { return framed(reply(int32At(r, 0), 0, str(nil, long)...)) },
		"the reply to a refusal":    func(r []byte) []byte { return framed(reply(int32At(r, 0), codeNoNode, []byte(long)...)) },
		"the reply to a longer one": func(r []byte) []byte { return framed(reply(int32At(r, 0), 0, str(nil, long[:2000])...)) },
	} {
		serve := func(conn net.Conn, n int) {
			welcome(conn, 10_000)
			for r := range requests(conn) {
				switch {
				case answerPing(conn, r):
				case n == 1:
					conn.Write(frame(r))
				default:
					conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/n")...)))
				}
			}
		}
		inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			start := time.Now()
			_, err = s.Commit(t.Context(), backend.Create("/n", nil, backend.Ephemeral))
			if !errors.Is(err, backend.ErrUncertain) || time.Since(start) > 0 {
				t.Errorf("%s: commit after %v: %v", name, time.Since(start), err)
			}
			if err := s.Sync(t.Context(), "/"); err != nil || s.Err() != nil {
				t.Errorf("%s: sync: %v, the session: %v", name, err, s.Err())
			}
		})
	}
}

// The longest paths that this package can read are no reason to refuse their events.
func TestLongFrame_AnEventOfTheLongestPath(t *testing.T) {
	t.Parallel()
	path := "/" + strings.Repeat("x", backend.MaxRequest-1)
	inTrees(t, func(conn net.Conn, n int) {
		welcome(conn, 10_000)
		for r := range requests(conn) {
			switch {
			case answerPing(conn, r):
			case int32At(r, 4) == opAddWatch:
				conn.Write(framed(reply(int32At(r, 0), 0)))
				conn.Write(eventOf(eventCreated, path))
			default:
				conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
			}
		}
	}, func(t *testing.T, s backend.Session) {
		w := backend.NewTreeWatch(math.MaxInt32)
		defer w.Stop()
		if err := s.WatchTree(t.Context(), "/", w); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if changes, over := w.Take(); len(changes) != 1 || changes[0].Path != path || over {
			t.Errorf("%d changes, over: %t", len(changes), over)
		}
	})
}
