package zookeeper

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord/backend"
)

// A request reads as many nodes as fill a reply of moderate size, if they are like those
// before. A reply that is longer than the client takes is skipped, and the reads are divided.
func TestManyReadsAreDivided(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var counts []int
	size := 0 // of the data of each node
	zeros := make([]byte, maxFrame+1+statSize)
	serve := func(conn net.Conn) {
		welcome(conn, 100_000) // a reply of 33 MiB must be whole within a part of it
		for {
			r, err := nextRequest(conn)
			if err != nil {
				return
			}
			if answerPing(conn, r) {
				continue
			}
			n := strings.Count(string(r), "/node")
			mu.Lock()
			counts = append(counts, n)
			one := appendInt32(appendMultiHeader(nil, opGetData, false), int32(size))
			long := zeros[:size+statSize]
			mu.Unlock()
			end := appendMultiHeader(nil, opError, true)
			conn.Write(be.AppendUint32(nil, uint32(replySize+n*(len(one)+len(long))+len(end))))
			conn.Write(reply(int32At(r, 0), 0))
			for range n {
				conn.Write(one)
				conn.Write(long)
			}
			conn.Write(end)
		}
	}
	b := New([]string{startServer(t, serve)}, &Options{Without: optional})
	b.(*service).cfg.abilities.has = backend.Batches
	s, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read := func(n, bytes int, path string, want ...int) {
		t.Helper()
		mu.Lock()
		counts, size = nil, bytes
		mu.Unlock()
		results, err := s.ReadMany(t.Context(), slices.Repeat([]backend.Read{{Path: path}}, n)...)
		if err != nil || len(results) != n {
			t.Fatalf("%d results, %v", len(results), err)
		}
		for _, r := range results {
			if bytes > maxFrame != errors.Is(r.Err, backend.ErrTooLarge) || r.Err == nil && len(r.Data) != bytes {
				t.Fatalf("%d bytes, %v", len(r.Data), r.Err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(counts, want) {
			t.Errorf("%d reads of %d bytes: requests for %v nodes, want %v", n, bytes, counts, want)
		}
	}
	read(100, 10, "/node", 16, 64, 20)
	read(10, 300<<10, "/node", 10)
	read(5, 300<<10, "/node", 3, 2)
	read(2, 1<<20, "/node", 2)
	read(1, 10, "/node", 1)
	read(64, 10, "/node", 3, 15, 46)
	// Paths count as well: a server drops the connection for a request of 1 MiB.
	read(5, 10, "/node"+strings.Repeat("x", 400_000), 2, 2, 1)
	read(64, 10, "/node", 64)
	read(2, 33<<20, "/node", 2, 1, 1)
	read(1, maxFrame+1, "/node", 1)
}
