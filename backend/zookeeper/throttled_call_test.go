package zookeeper

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// throttling is a server that does not run the first requests.
type throttling struct {
	first   int32 // the number of requests that are not run
	syncs   bool  // each sync is run all the same
	inMulti bool  // report it in the results of a multi, not in the header
	asked   atomic.Int32
	ran     atomic.Int32
	last    atomic.Int32  // the latest opcode
	began   chan struct{} // gets a value for each request that was not run, if there is room
}

func (f *throttling) serve(conn net.Conn) {
	welcome(conn, 10_000)
	for {
		r, err := nextRequest(conn)
		if err != nil {
			return
		}
		xid, op := int32At(r, 0), int32At(r, 4)
		if op == opClose {
			conn.Write(framed(reply(xid, 0)))
			return
		}
		f.last.Store(op)
		if f.asked.Add(1) <= f.first && !(f.syncs && op == opSync) {
			body := reply(xid, codeThrottled)
			if op == opMulti && f.inMulti {
				body = reply(xid, 0)
				for _, code := range []int32{codeThrottled, -2} {
					body = be.AppendUint32(append(body, multiHead(opError, 0)...), uint32(code))
				}
				body = append(body, multiHead(opError, 1)...)
			}
			conn.Write(framed(body))
			select {
			case f.began <- struct{}{}:
			default:
			}
			continue
		}
		f.ran.Add(1)
		body := reply(xid, 0)
		switch op {
		case opMulti:
			body = append(body, multiHead(opDelete, 0)...)
			body = append(body, multiHead(opDelete, 0)...)
			body = append(body, multiHead(opError, 1)...)
		case opSync:
			body = str(body, "/")
		default:
			body = append(body, make([]byte, 4+statSize)...)
		}
		conn.Write(framed(body))
	}
}

// open opens a session over a pipe, so that inside a synctest bubble all time is fake. A call
// can be ended in its pause, when none of its requests is under way.
func (f *throttling) open(t *testing.T) *session {
	t.Helper()
	f.began = make(chan struct{}, 1)
	s, err := New([]string{"127.0.0.1:1"}, &Options{
		Without: optional,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				f.serve(server)
			}()
			return client, nil
		},
	}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*session)
}

func throttledCalls() map[string]func(context.Context, *session) error {
	return map[string]func(context.Context, *session) error{
		"a read": func(ctx context.Context, s *session) error {
			_, _, err := s.Get(ctx, "/a", nil)
			return err
		},
		"an arm": func(ctx context.Context, s *session) error {
			return s.Arm(ctx, 0, target("/a", false), target("/b", true))
		},
		"a sync": func(ctx context.Context, s *session) error { return s.Sync(ctx, "/a") },
		"a commit": func(ctx context.Context, s *session) error {
			_, err := s.Commit(ctx, backend.Delete("/a", 0))
			return err
		},
		"a commit of two": func(ctx context.Context, s *session) error {
			_, err := s.Commit(ctx, backend.Delete("/a", 0), backend.Delete("/b", 0))
			return err
		},
	}
}

func TestAThrottledCallIsSentUntilItRuns(t *testing.T) {
	t.Parallel()
	for name, call := range throttledCalls() {
		for _, inMulti := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				f := &throttling{first: 3, inMulti: inMulti}
				err := call(t.Context(), f.open(t))
				if err != nil || f.asked.Load() != 4 || f.ran.Load() != 1 {
					t.Errorf("%s, %v: %v after %d requests, %d ran", name, inMulti, err, f.asked.Load(), f.ran.Load())
				}
			})
		}
	}
}

// Calls that come back together would make each other wait, and a server refuses a request that has
// waited for long.
func TestThrottledCallsAreSentAgainOneByOne(t *testing.T) {
	t.Parallel()
	for name, call := range throttledCalls() {
		synctest.Test(t, func(t *testing.T) {
			const calls = 50
			f := &throttling{first: calls}
			s := f.open(t)
			errs := make(chan error, calls)
			for range calls {
				go func() { errs <- call(t.Context(), s) }()
			}
			synctest.Wait()
			if n := f.asked.Load(); n != calls {
				t.Fatalf("%s: %d requests at first, want %d", name, n, calls)
			}
			start := time.Now()
			for range calls {
				if err := <-errs; err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if n := f.asked.Load(); n != 2*calls {
				t.Errorf("%s: %d requests, want %d", name, n, 2*calls)
			}
			// Each pauses when it has its turn, and those before it have been answered.
			if took, least := time.Since(start), calls*firstEase/2; took < least {
				t.Errorf("%s: sent again within %v, their pauses one after the other come to %v at least", name, took, least)
			}
		})
	}
}

func TestAThrottledCallEndsWithItsContextAndIsDefinite(t *testing.T) {
	t.Parallel()
	for name, call := range throttledCalls() {
		synctest.Test(t, func(t *testing.T) {
			f := &throttling{first: 1 << 30}
			s := f.open(t)
			cause := errors.New("the caller's reason")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
			defer cancel()
			start := time.Now()
			err := call(ctx, s)
			took := time.Since(start)
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cause) || errors.Is(err, backend.ErrUncertain) {
				t.Errorf("%s: the error: %v", name, err)
			}
			n := f.asked.Load()
			if least := firstEase / 2 * (1<<(n-1) - 1); n < 2 || took < least {
				t.Errorf("%s: %d requests in %v, the pauses between them come to %v at least", name, n, took, least)
			}
		})
	}
}

func TestAThrottledCallEndsWithItsSessionAndIsDefinite(t *testing.T) {
	t.Parallel()
	for name, call := range throttledCalls() {
		synctest.Test(t, func(t *testing.T) {
			f := &throttling{first: 1 << 30}
			s := f.open(t)
			done := make(chan error)
			go func() { done <- call(t.Context(), s) }()
			for f.asked.Load() < 8 {
				<-f.began
			}
			synctest.Wait()
			// The call waits for at least half a second.
			start := time.Now()
			go s.Close()
			err := <-done
			if !errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrUncertain) {
				t.Errorf("%s: the error: %v", name, err)
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("%s: it returned %v after Close", name, took)
			}
		})
	}
}

// A commit that waits to be sent again has begun before the Sync.
func TestSyncWaitsForAThrottledCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &throttling{first: 4, syncs: true}
		s := f.open(t)
		done := make(chan error)
		go func() {
			_, err := s.Commit(t.Context(), backend.Delete("/a", 0))
			done <- err
		}()
		<-f.began
		// The commit pauses before it is sent again, so the first Sync goes ahead of it.
		if err := s.Sync(t.Context(), "/"); err != nil || f.asked.Load() != 6 || f.ran.Load() != 3 || f.last.Load() != opSync {
			t.Errorf("sync: %v after %d requests, %d ran, the last one was %d", err, f.asked.Load(), f.ran.Load(), f.last.Load())
		}
		if err := <-done; err != nil {
			t.Errorf("commit: %v", err)
		}
		if n := len(s.throttled); n != 0 {
			t.Errorf("%d commits under way after all have returned", n)
		}
	})
}
