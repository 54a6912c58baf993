package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// narrow is a server that drops a connection for a frame that is longer than its limits.
type narrow struct {
	hello atomic.Int64 // the limit of the first frame of a connection
	later atomic.Int64 // the limit of the others
	slow  atomic.Int64 // how long it waits before it answers the first frame
	conns atomic.Int32

	mu      sync.Mutex
	dropped []int // the lengths of frames after the first for which it has dropped a connection
	first   int   // the connections that it has dropped for the first frame
}

func (f *narrow) serve(conn net.Conn, _ int) {
	f.conns.Add(1)
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return
	}
	n := int64(binary.BigEndian.Uint32(size[:]))
	time.Sleep(time.Duration(f.slow.Load()))
	if n > f.hello.Load() {
		f.mu.Lock()
		f.first++
		f.mu.Unlock()
		return
	}
	if _, err := io.CopyN(io.Discard, conn, n); err != nil {
		return
	}
	b := be.AppendUint32(be.AppendUint32(nil, 0), 10_000)
	conn.Write(framed(str(be.AppendUint64(b, 0x77), strings.Repeat("p", 16))))
	for {
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		n := int64(binary.BigEndian.Uint32(size[:]))
		if n > f.later.Load() {
			f.mu.Lock()
			f.dropped = append(f.dropped, int(n))
			f.mu.Unlock()
			return
		}
		r := make([]byte, n)
		if _, err := io.ReadFull(conn, r); err != nil {
			return
		}
		body := make([]byte, statSize)
		if op := int32At(r, 4); op == opChildren || op == opGetData {
			body = make([]byte, 4+statSize)
		}
		conn.Write(framed(reply(int32At(r, 0), 0, body...)))
	}
}

func (f *narrow) drops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.dropped)
}

func set(n int) backend.Op { return backend.SetData("/n", make([]byte, n), backend.AnyVersion) }

// The first request that a server does not read breaks the connection. After that the limit is known
// to all sessions of the backend, and a server that reads more again is noticed.
func TestFrameLimit_IsMeasuredOnce(t *testing.T) {
	t.Parallel()
	const limit = 50_000
	f := new(narrow)
	f.hello.Store(limit)
	f.later.Store(limit)
	inBubble(t, Options{}, f.serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		whole := s.Limits()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Commit(ctx, set(limit)); !errors.Is(err, backend.ErrUncertain) {
			t.Errorf("the first commit: %v", err)
		}
		if err := s.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		head := len(encodeCommit(nil, []backend.Op{set(0)}, appendSteps(nil, []backend.Op{set(0)}), s.(*session).cfg.aclOf)) - 4
		for _, test := range []struct {
			n    int
			want error
		}{{limit, backend.ErrTooLarge}, {limit - head + 1, backend.ErrTooLarge}, {limit - head, nil}, {900_000, backend.ErrTooLarge}, {10, nil}} {
			_, err := s.Commit(ctx, set(test.n))
			if !errors.Is(err, test.want) || errors.Is(err, backend.ErrUncertain) || test.want == nil && err != nil {
				t.Errorf("%d bytes: %v, want %v", test.n, err, test.want)
			}
		}
		long := "/" + strings.Repeat("x", limit)
		if _, err := s.Exists(ctx, long, nil); !errors.Is(err, backend.ErrTooLarge) {
			t.Errorf("exists: %v", err)
		}
		half := "/" + strings.Repeat("x", limit-1000)
		if err := s.Arm(ctx, 1<<40, target(half, false), target("/b", true)); err != nil {
			t.Errorf("arm: %v", err)
		}
		if n := f.drops(); n != 1 || s.Err() != nil || s.Limits() != whole {
			t.Errorf("%d connections dropped, the session: %v, limits %+v", n, s.Err(), s.Limits())
		}
		other, err := b.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if n := other.Limits().Bytes; n > limit-head || n < limit*9/10 {
			t.Errorf("the next session has a limit of %d bytes", n)
		}
		if _, err := other.Commit(ctx, set(other.Limits().Bytes-len("/n"))); err != nil {
			t.Errorf("a commit of its limit: %v", err)
		}
		if _, err := other.Commit(ctx, set(limit)); !errors.Is(err, backend.ErrTooLarge) {
			t.Errorf("a commit of the next session: %v", err)
		}

		// The server is restarted with the default.
		f.hello.Store(largestFrame)
		f.later.Store(largestFrame)
		s.(*session).conn.fail(io.EOF)
		if err := s.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(ctx, set(limit)); err != nil {
			t.Errorf("a commit after the limit was raised: %v", err)
		}
		if n := f.drops(); n != 1 {
			t.Errorf("%d connections dropped", n)
		}
	})
}

// A server that reads a request can be unable to pass it on to its leader. Then measuring finds nothing.
func TestFrameLimit_AFrameThatBreaksEachConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	const limit = 50_000
	f := new(narrow)
	f.hello.Store(largestFrame)
	f.later.Store(limit)
	inBubble(t, Options{}, f.serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 10 {
			_, err = s.Commit(ctx, set(limit))
			if errors.Is(err, backend.ErrTooLarge) {
				break
			}
			if !errors.Is(err, backend.ErrUncertain) {
				t.Fatal(err)
			}
			if err := s.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.drops(); n != mostBreaks || !errors.Is(err, backend.ErrTooLarge) || errors.Is(err, backend.ErrUncertain) {
			t.Errorf("%d connections dropped, %v", n, err)
		}
		if _, err := s.Commit(ctx, set(limit/2)); err != nil || s.Err() != nil {
			t.Errorf("%v, the session: %v", err, s.Err())
		}
	})
}

// A server is too slow for the attempts that a measurement needs. A measurement ends after two seconds, and
// is begun once for each break, so neither requests nor connections follow one another without an end.
func TestFrameLimit_AMeasurementThatDoesNotEndIsMadeOncePerBreak(t *testing.T) {
	t.Parallel()
	const limit, slow = 50_000, 300 * time.Millisecond
	f := new(narrow)
	f.hello.Store(limit)
	f.later.Store(limit)
	f.slow.Store(int64(slow))
	inBubble(t, Options{}, f.serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		before := f.conns.Load()
		for range 10 {
			_, err = s.Commit(ctx, set(limit))
			if errors.Is(err, backend.ErrTooLarge) {
				break
			}
			if !errors.Is(err, backend.ErrUncertain) {
				t.Fatal(err)
			}
			if err := s.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
		}
		if n := f.drops(); n != mostBreaks || !errors.Is(err, backend.ErrTooLarge) || s.Err() != nil {
			t.Errorf("%d connections dropped, %v, the session: %v", n, err, s.Err())
		}
		// Each measurement makes one connection per 300 ms, and the session makes one behind it.
		if n, each := f.conns.Load()-before, int32(mostMeasure/slow)+2; n > mostBreaks*each || n < mostBreaks*(each-2) {
			t.Errorf("%d connections for %d breaks, want %d at most", n, mostBreaks, mostBreaks*each)
		}
		if n := s.(*session).cfg.frameLimit.Load(); n != 0 {
			t.Errorf("a limit of %d was measured", n)
		}
	})
}

// Connections that break for another reason say nothing about a long request under way: a request of
// its length is answered, or others break too.
func TestFrameLimit_AnotherBreakIsNoReason(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]int{"an answer": 60_000, "a shorter one": 8_000} {
		f := new(narrow)
		f.hello.Store(largestFrame)
		f.later.Store(largestFrame)
		inBubble(t, Options{}, f.serve, func(t *testing.T, b backend.Backend) {
			s, err := b.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for range 3 * mostBreaks {
				f.later.Store(50_000)
				if _, err := s.Commit(t.Context(), set(60_000)); !errors.Is(err, backend.ErrUncertain) {
					t.Fatalf("%s: %v", name, err)
				}
				if f.later.Store(largestFrame); between < 60_000 {
					f.later.Store(int64(between) - 100)
				}
				if _, err := s.Commit(t.Context(), set(between)); (err == nil) != (between == 60_000) || errors.Is(err, backend.ErrTooLarge) {
					t.Fatalf("%s: a commit of %d bytes: %v", name, between, err)
				}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.first > 0 {
				t.Errorf("%s: %d connections were dropped for the first request", name, f.first)
			}
		})
	}
}

// A lost connection with short requests under way costs no connection more.
func TestFrameLimit_ShortRequestsAreNotMeasured(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	inBubble(t, Options{}, func(conn net.Conn, n int) {
		conns.Add(1)
		welcome(conn, 10_000)
		for r := range requests(conn) {
			if n < 3 && !answerPing(conn, r) {
				return
			}
			conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
		}
	}, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for range 2 {
			if _, err := s.Commit(t.Context(), backend.Delete("/"+strings.Repeat("x", smallFrame-100), 1)); !errors.Is(err, backend.ErrUncertain) {
				t.Fatal(err)
			}
		}
		if err := s.Sync(t.Context(), "/"); err != nil || conns.Load() != 3 {
			t.Errorf("%v, %d connections", err, conns.Load())
		}
	})
}

// A server is restarted with a limit that is lower than the known one. The first request above it breaks the
// connection, and then the lower limit is known.
func TestFrameLimit_ALowerOneIsMeasured(t *testing.T) {
	t.Parallel()
	f := new(narrow)
	limit := func(n int64) {
		f.hello.Store(n)
		f.later.Store(n)
	}
	limit(50_000)
	inBubble(t, Options{}, f.serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for n, test := range []struct {
			limit int64
			size  int
		}{{50_000, 60_000}, {20_000, 30_000}} {
			limit(test.limit)
			if _, err := s.Commit(ctx, set(test.size)); !errors.Is(err, backend.ErrUncertain) {
				t.Errorf("a limit of %d bytes: the first commit: %v", test.limit, err)
			}
			if err := s.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Commit(ctx, set(test.size)); !errors.Is(err, backend.ErrTooLarge) || errors.Is(err, backend.ErrUncertain) {
				t.Errorf("a limit of %d bytes: the second commit: %v", test.limit, err)
			}
			if got := s.(*session).cfg.frameLimit.Load(); got != test.limit || f.drops() != n+1 {
				t.Errorf("a limit of %d bytes: %d was measured, %d connections dropped", test.limit, got, f.drops())
			}
		}
	})
}
