package zookeeper

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-coord/coord/backend"
)

// MostBreaks is how often a request of one length is sent if each time the server drops the connection.
const MostBreaks = mostBreaks

// Interests returns the number of watches that a session holds, armed or being armed. It is zero
// only if no trace of a watch is left.
func Interests(s backend.Session) int {
	h := s.(*session).hub
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, set := range h.armed {
		n += len(set)
	}
	for _, set := range h.arming {
		n += len(set)
	}
	for _, t := range h.trees {
		n += t.adding + len(t.watches)
	}
	return n + len(h.armed) + len(h.arming) + len(h.trees)
}

// MultiRead reads the data and the names of the children of each node in one request, and
// returns what it finds as text.
func MultiRead(ctx context.Context, s backend.Session, paths ...string) (string, error) {
	var reads []backend.Read
	for _, path := range paths {
		reads = append(reads, backend.Read{Path: path}, backend.Read{Path: path, Children: true})
	}
	a, err := ask(ctx, s, opMultiRead, encodeMultiRead(nil, reads), len(reads))
	var b strings.Builder
	for _, r := range a.reads {
		fmt.Fprintf(&b, "%d %q %d %v; ", r.code, r.data, r.stat.Version, r.names)
	}
	return b.String(), err
}

// AddWatch arms a persistent recursive watch. RemoveWatches removes all watches of a node.
func AddWatch(ctx context.Context, s backend.Session, path string) (code int32, err error) {
	a, err := ask(ctx, s, opAddWatch, encodeAddWatch(nil, path, 1), 0)
	return a.code, err
}

func RemoveWatches(ctx context.Context, s backend.Session, path string) (code int32, err error) {
	a, err := ask(ctx, s, opRemoveWatches, encodeRemoveWatches(nil, path, 3), 0)
	return a.code, err
}

func ask(ctx context.Context, s backend.Session, op int32, frame []byte, count int) (answer, error) {
	c := s.(*session).newCall(op)
	c.frame, c.count = frame, count
	defer s.(*session).release(c)
	_, err := s.(*session).do(ctx, c)
	return c.answer, err
}

// LatestWrite returns the node of the latest creation or change of a session, and its zxid.
func LatestWrite(s backend.Session) (path string, zxid int64) {
	x := s.(*session)
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.past.wrote.path, x.past.wrote.mzxid
}
