package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord/backend"
)

// arming is a server that answers setWatches with a scripted reply, and reads with the nodes
// that it knows.
type arming struct {
	answer func(n int, xid int32) []byte // to the nth setWatches, from 1; nil drops the connection
	before atomic.Pointer[func()]        // called once before a reply, if it is not nil

	mu    sync.Mutex
	nodes map[string]int64 // by path, the zxid of their latest change
	fail  map[string]int32 // by path, the code of the answer to a read
	asked map[int32]int    // requests by opcode
	conn  net.Conn         // the latest
}

func (f *arming) serve(conn net.Conn) {
	welcome(conn, 10_000)
	f.mu.Lock()
	f.conn = conn
	f.mu.Unlock()
	for {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		body := f.reply(int32At(r, 0), int32At(r, 4), r[8:])
		if body == nil {
			return
		}
		if hold := f.before.Swap(nil); hold != nil {
			(*hold)()
		}
		conn.Write(framed(body))
	}
}

func (f *arming) reply(xid, op int32, rest []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[op]++
	switch op {
	case opWatches:
		return f.answer(f.asked[op], xid)
	case opExists, opChildren:
		d := decoder{rest: rest}
		path := d.buffer()
		zxid, ok := f.nodes[string(path)]
		switch {
		case f.fail[string(path)] != 0:
			return reply(xid, f.fail[string(path)])
		case !ok:
			return reply(xid, codeNoNode)
		}
		stat := be.AppendUint64(be.AppendUint64(nil, 1), uint64(zxid)) // czxid, mzxid
		stat = append(stat, make([]byte, statSize-24)...)
		stat = be.AppendUint64(stat, uint64(zxid)) // pzxid
		if op == opChildren {
			return append(be.AppendUint32(reply(xid, 0), 0), stat...)
		}
		return append(reply(xid, 0), stat...)
	case opSync:
		return str(reply(xid, 0), "/")
	}
	return reply(xid, 0)
}

// send sends an event on the current connection.
func (f *arming) send(kind int32, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn.Write(framed(str(be.AppendUint32(be.AppendUint32(reply(xidEvent, 0), uint32(kind)), 3), path)))
}

func (f *arming) count(op int32) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[op]
}

func (f *arming) open(t *testing.T) *session {
	t.Helper()
	f.asked = make(map[int32]int)
	s, err := New([]string{startServer(t, f.serve)}, &Options{Without: optional}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*session)
}

func armTargets() (data, child backend.Target) { return target("/data", false), target("/child", true) }

// deletes sends the deletion of each node, and waits until the session has received it.
func (f *arming) deletes(t *testing.T, s *session, paths ...string) {
	t.Helper()
	for _, path := range paths {
		f.send(eventDeleted, path)
	}
	if err := s.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
}

func TestFaultyRepliesToAnArm(t *testing.T) {
	t.Parallel()
	success := func(xid int32) []byte { return reply(xid, 0) }
	once := func(bad func(xid int32) []byte) func(int, int32) []byte {
		return func(n int, xid int32) []byte {
			if n == 1 {
				return bad(xid)
			}
			return success(xid)
		}
	}
	always := func(code int32) func(int, int32) []byte {
		return func(_ int, xid int32) []byte { return reply(xid, code, 1, 2, 3) }
	}
	for name, test := range map[string]struct {
		answer func(n int, xid int32) []byte
		err    error // nil: all watches are armed
		asked  int
	}{
		"a body where none belongs":        {func(_ int, xid int32) []byte { return reply(xid, 0, 0xff, 0xff, 0xff, 0xff, 9) }, nil, 1},
		"a large body":                     {func(_ int, xid int32) []byte { return reply(xid, 0, bytes.Repeat([]byte("x"), 3*keepFrame)...) }, nil, 1},
		"half a header, then a good reply": {once(func(xid int32) []byte { return reply(xid, 0)[:9] }), nil, 2},
		"no answer, then a good reply":     {once(func(int32) []byte { return nil }), nil, 2},
		"the answer to another request":    {once(func(xid int32) []byte { return reply(xid+7, 0) }), nil, 2},
		"throttled, then a good reply":     {once(func(xid int32) []byte { return reply(xid, codeThrottled) }), nil, 2},
		"session moved, then a good reply": {once(func(xid int32) []byte { return reply(xid, codeSessionMoved) }), nil, 2},
		"no node":                          {always(codeNoNode), backend.ErrNotFound, 1},
		"no permission":                    {always(-102), backend.ErrDenied, 1},
		"the session has expired":          {always(codeSessionExpired), backend.ErrSessionLost, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &arming{answer: test.answer}
			s := f.open(t)
			data, child := armTargets()
			err := s.Arm(t.Context(), math.MaxInt64, data, child)
			if n := f.count(opWatches); !errors.Is(err, test.err) || n != test.asked || f.count(opExists)+f.count(opChildren) != 0 {
				t.Fatalf("arm: %v after %d requests", err, n)
			}
			want := backend.Kind(0)
			if test.err == nil {
				want = backend.Deleted
			}
			if s.Err() == nil {
				f.deletes(t, s, "/data", "/child")
			}
			if data.Watch.Kind() != want || child.Watch.Kind() != want || Interests(s) != 0 {
				t.Errorf("%v and %v, %d left", data.Watch.Kind(), child.Watch.Kind(), Interests(s))
			}
		})
	}
}

// These codes are the answers of a service that does not know setWatches, or that fails in
// it.
func TestAServiceWithoutSetWatchesIsReadNodeByNode(t *testing.T) {
	t.Parallel()
	for _, code := range []int32{-6, -5, -1} {
		f := &arming{answer: func(_ int, xid int32) []byte { return reply(xid, code) }}
		f.nodes = map[string]int64{"/data": 10, "/child": 10, "/old": 10, "/older": 10}
		s := f.open(t)
		data, child := armTargets()
		old, older, gone, never := target("/old", false), target("/older", true), target("/gone", false), target("/never", true)
		stopped, twice := target("/data", false), target("/data", false)
		stopped.Watch.Stop()
		f.nodes["/old"], f.nodes["/older"] = 11, 12
		if err := s.Arm(t.Context(), 10, data, old, gone, child, stopped, never, older, twice); err != nil {
			t.Fatalf("%d: %v", code, err)
		}
		if f.count(opExists) != 5 || f.count(opChildren) != 3 {
			t.Errorf("%d: %v", code, f.asked)
		}
		for _, late := range []backend.Target{old, older, gone, never} {
			if late.Watch.Kind() != backend.LookAgain {
				t.Errorf("%d: %s has kind %v", code, late.Path, late.Watch.Kind())
			}
		}
		// Three watches under two keys are left. Those that came too late leave nothing.
		if n := Interests(s); n != 5 {
			t.Errorf("%d: %d interests", code, n)
		}
		twice.Watch.Stop()
		f.deletes(t, s, "/data", "/child", "/old", "/older")
		for _, armed := range []backend.Target{data, child} {
			if armed.Watch.Kind() != backend.Deleted {
				t.Errorf("%d: %s has kind %v", code, armed.Path, armed.Watch.Kind())
			}
		}
		if stopped.Watch.Kind() != 0 || twice.Watch.Kind() != 0 || Interests(s) != 0 {
			t.Errorf("%d: %v, %v, %d left", code, stopped.Watch.Kind(), twice.Watch.Kind(), Interests(s))
		}
	}
}

func TestAnArmNodeByNodeThatFailsLeavesNothingArmed(t *testing.T) {
	t.Parallel()
	f := &arming{answer: func(_ int, xid int32) []byte { return reply(xid, -6) }}
	f.nodes = map[string]int64{"/data": 10, "/child": 10}
	f.fail = map[string]int32{"/secret": -102}
	s := f.open(t)
	data, child := armTargets()
	err := s.Arm(t.Context(), 10, data, target("/secret", true), child)
	var e *backend.Error
	if !errors.Is(err, backend.ErrDenied) || !errors.As(err, &e) || e.Op != "arm" || e.Path != "/secret" {
		t.Errorf("arm: %v", err)
	}
	f.deletes(t, s, "/data", "/child")
	if data.Watch.Kind() != 0 || child.Watch.Kind() != 0 || Interests(s) != 0 {
		t.Errorf("%v and %v, %d left", data.Watch.Kind(), child.Watch.Kind(), Interests(s))
	}
}

// The reply has arrived, and has not armed its watches yet.
func TestACallAbandonedAsItsReplyArrivesLeavesNothingArmed(t *testing.T) {
	t.Parallel()
	f := &arming{nodes: map[string]int64{"/data": 10, "/child": 10}}
	f.answer = func(_ int, xid int32) []byte { return reply(xid, 0) }
	s := f.open(t)
	for name, ask := range map[string]func(ctx context.Context, data, child backend.Target) error{
		"arm": func(ctx context.Context, data, child backend.Target) error {
			return s.Arm(ctx, math.MaxInt64, data, child)
		},
		"exists": func(ctx context.Context, data, _ backend.Target) error {
			_, err := s.Exists(ctx, data.Path, data.Watch)
			return err
		},
		"children": func(ctx context.Context, _, child backend.Target) error {
			_, _, err := s.Children(ctx, child.Path, child.Watch)
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		hold := s.hub.mu.Lock // the reader arms the watches under this lock
		f.before.Store(&hold)
		data, child := target("/data", false), target("/child", true)
		done := make(chan error, 1)
		go func() { done <- ask(ctx, data, child) }()
		await := func(state func(c *call) bool) {
			for there := false; !there; runtime.Gosched() {
				s.mu.Lock()
				there = s.conn.reading != nil && state(s.conn.reading)
				s.mu.Unlock()
			}
		}
		await(func(*call) bool { return true })
		cancel()
		await(func(c *call) bool { return c.stage == leftAlone })
		s.hub.mu.Unlock()
		err := <-done
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: %v", name, err)
		}
		f.deletes(t, s, "/data", "/child")
		if data.Watch.Kind() != 0 || child.Watch.Kind() != 0 || Interests(s) != 0 {
			t.Errorf("%s: %v and %v, %d left", name, data.Watch.Kind(), child.Watch.Kind(), Interests(s))
		}
	}
}
