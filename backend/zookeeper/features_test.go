package zookeeper

import (
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/go-coord/coord/backend"
)

// An oldServer answers the requests of trees and of batches as a server that does not know
// them, and all other requests with success.
type oldServer struct {
	mu    sync.Mutex
	asked []int32 // opcodes, without pings
	conns int     // on which there was a request: a slow handshake is tried again beside it

	refuse func(conn net.Conn, op, xid int32) (refused, closes bool)
}

func (o *oldServer) serve(conn net.Conn) {
	welcome(conn, 10_000)
	for first := true; ; {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		if answerPing(conn, r) {
			continue
		}
		xid, op := int32At(r, 0), int32At(r, 4)
		o.mu.Lock()
		if first {
			first = false
			o.conns++
		}
		o.asked = append(o.asked, op)
		o.mu.Unlock()
		if refused, closes := o.refuse(conn, op, xid); closes {
			return
		} else if refused {
			continue
		}
		var body []byte
		switch op {
		case opMultiRead:
			body = appendMultiHeader(appendInt32(appendMultiHeader(nil, opError, false), codeNoNode), opError, true)
		case opSync:
			body = str(nil, "/")
		}
		conn.Write(framed(reply(xid, 0, body...)))
	}
}

// takeAsked returns the opcodes of the requests since the last call.
func (o *oldServer) takeAsked() []int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	asked := o.asked
	o.asked = nil
	return asked
}

// always are the features that every server has.
const always = backend.Containers | backend.Clock

// The first session of a backend finds out which requests the servers know. Later ones do not
// ask, and no call of a session that is in use breaks its connection.
func TestTheFirstSessionFindsOutWhatTheServersKnow(t *testing.T) {
	t.Parallel()
	// answering refuses opcodes with a code.
	answering := func(code int32, closes bool, ops ...int32) func(net.Conn, int32, int32) (bool, bool) {
		return func(conn net.Conn, op, xid int32) (bool, bool) {
			if !slices.Contains(ops, op) {
				return false, false
			}
			conn.Write(framed(reply(xid, code)))
			return true, closes
		}
	}
	for _, test := range []struct {
		name   string
		refuse func(net.Conn, int32, int32) (bool, bool)
		has    backend.Features
		conns  int
		asked  []int32
	}{
		{"a server that knows all", answering(0, false), optional, 1, []int32{opMultiRead, opAddWatch, opRemoveWatches}},
		{"a server before 3.6", answering(codeUnimplemented, true, opMultiRead, opAddWatch), 0, 3, []int32{opMultiRead, opAddWatch}},
		{"a server with another manager of watches", answering(-5, false, opAddWatch), backend.Batches, 1, []int32{opMultiRead, opAddWatch}},
		{"a server that has only trees", answering(codeUnimplemented, true, opMultiRead), backend.Trees, 2, []int32{opMultiRead, opAddWatch, opRemoveWatches}},
		{"a server that closes the connection", func(_ net.Conn, op, _ int32) (bool, bool) { return false, op == opMultiRead }, backend.Trees, 4,
			[]int32{opMultiRead, opMultiRead, opMultiRead, opAddWatch, opRemoveWatches}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := &oldServer{refuse: test.refuse}
			b := New([]string{startServer(t, server.serve)}, nil)
			for n := range 2 {
				s, err := b.Open(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if got := s.Features(); got != test.has|always {
					t.Errorf("session %d has features %b, want %b", n, got, test.has|always)
				}
				if err := s.Sync(t.Context(), "/"); err != nil { // behind the request without an answer
					t.Fatal(err)
				}
				want := append(slices.Clone(test.asked), opSync)
				if n == 1 {
					want = []int32{opSync}
				}
				if asked := server.takeAsked(); !slices.Equal(asked, want) {
					t.Errorf("session %d asked %v, want %v", n, asked, want)
				}
				server.mu.Lock()
				conns := server.conns
				server.mu.Unlock()
				if conns != test.conns+n {
					t.Errorf("%d connections after session %d, want %d", conns, n, test.conns+n)
				}
				if !test.has.Has(backend.Batches) {
					if _, err := s.ReadMany(t.Context(), backend.Read{Path: "/"}); !errors.Is(err, backend.ErrUnsupported) {
						t.Errorf("read many: %v", err)
					}
				}
				if !test.has.Has(backend.Trees) {
					if err := s.WatchTree(t.Context(), "/", backend.NewTreeWatch(0)); !errors.Is(err, backend.ErrUnsupported) {
						t.Errorf("watch a tree: %v", err)
					}
				}
				if asked := server.takeAsked(); len(asked) > 0 {
					t.Errorf("session %d asked %v for what the server lacks", n, asked)
				}
			}
		})
	}
}

// Options.Without switches a feature off, and then nothing is asked for it.
func TestAFeatureIsSwitchedOff(t *testing.T) {
	t.Parallel()
	for _, without := range []backend.Features{backend.Trees, backend.Batches, optional} {
		server := &oldServer{refuse: func(net.Conn, int32, int32) (bool, bool) { return false, false }}
		s, err := New([]string{startServer(t, server.serve)}, &Options{Without: without}).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got, want := s.Features(), (optional&^without)|always; got != want {
			t.Errorf("without %b: features %b, want %b", without, got, want)
		}
		asked := server.takeAsked()
		if slices.Contains(asked, opMultiRead) != !without.Has(backend.Batches) || slices.Contains(asked, opAddWatch) != !without.Has(backend.Trees) {
			t.Errorf("without %b: asked %v", without, asked)
		}
	}
}

// A backend can have servers of several versions. A session that comes to an old one refuses
// from then on what that server does not know, and does not ask it again.
func TestAnOlderServerIsFoundOutLater(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	old := false
	server := &oldServer{refuse: func(conn net.Conn, op, xid int32) (bool, bool) {
		mu.Lock()
		defer mu.Unlock()
		if !old || op != opMultiRead && op != opAddWatch {
			return false, false
		}
		conn.Write(framed(reply(xid, codeUnimplemented)))
		return true, true
	}}
	s, err := New([]string{startServer(t, server.serve)}, nil).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mu.Lock()
	old = true
	mu.Unlock()
	server.takeAsked()
	for n := range 2 {
		if _, err := s.ReadMany(t.Context(), backend.Read{Path: "/"}); !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("read many: %v", err)
		}
		if err := s.WatchTree(t.Context(), "/", backend.NewTreeWatch(0)); !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("watch a tree: %v", err)
		}
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Error(err)
		}
		asked := slices.DeleteFunc(server.takeAsked(), func(op int32) bool { return op == opSync || op == opRemoveWatches })
		if want := [][]int32{{opMultiRead, opAddWatch}, {}}[n]; !slices.Equal(asked, want) {
			t.Errorf("turn %d: asked %v, want %v", n, asked, want)
		}
	}
	if s.Features() != always {
		t.Errorf("features %b", s.Features())
	}
}
