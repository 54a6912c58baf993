package zkprobe

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

	"github.com/go-coord/coord/internal/zktest"
)

func to(addr string) Dialer {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", addr) }
}

func TestLimit_OfARealServer(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0xfffff, 65536} {
		e := zktest.Run(t, &zktest.Options{JavaArgs: map[bool][]string{true: {"-Djute.maxbuffer=65536"}}[limit == 65536]})
		before := sessions(t, e)
		got, err := Limit(t.Context(), to(e.Addrs()[0]), 2<<20)
		if err != nil || got != limit {
			t.Errorf("a limit of %d, %v; want %d", got, err, limit)
		}
		if got, err := Limit(t.Context(), to(e.Addrs()[0]), limit); err != nil || got != limit {
			t.Errorf("the limit itself: %d, %v", got, err)
		}
		if n := sessions(t, e); n != before {
			t.Errorf("there were %s sessions and are %s", before, n)
		}
	}
}

func sessions(t *testing.T, e *zktest.Ensemble) string {
	t.Helper()
	m, err := e.Servers()[0].Mntr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m["zk_global_sessions"]
}

// serve answers a frame if read says so for its length and the number of the connection.
func serve(t *testing.T, read func(size int, n int32) bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var conns atomic.Int32
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				var head [4]byte
				if _, err := io.ReadFull(conn, head[:]); err != nil {
					return
				}
				size := int(binary.BigEndian.Uint32(head[:]))
				if read(size, conns.Add(1)) {
					io.CopyN(io.Discard, conn, int64(size))
					conn.Write(make([]byte, 41))
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func TestLimit_EachLength(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1024, 1025, 2047, 2048, 4999, 5000} {
		addr := serve(t, func(size int, _ int32) bool { return size <= limit })
		conns := 0
		dial := func(ctx context.Context) (net.Conn, error) {
			conns++
			return to(addr)(ctx)
		}
		if got, err := Limit(t.Context(), dial, 5000); err != nil || got != limit {
			t.Errorf("%d: %d, %v", limit, got, err)
		}
		// The longest and the shortest request, 12 to halve 4,000 lengths, and three that confirm the limit.
		if conns > 2+12+3 {
			t.Errorf("%d: %d connections", limit, conns)
		}
	}
}

// A server that drops connections for another reason has no limit.
func TestLimit_IsNotGuessed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		read func(size int, n int32) bool
		says string
	}{
		"all dropped":      {func(int, int32) bool { return false }, "however short"},
		"the first dozen":  {func(_ int, n int32) bool { return n == 2 || n > 12 }, "at random"},
		"only the last":    {func(size int, n int32) bool { return size <= 3000 && n < 14 }, "at random"},
		"only the seventh": {func(_ int, n int32) bool { return n != 1 && n != 7 }, "at random"},
	} {
		addr := serve(t, test.read)
		if got, err := Limit(t.Context(), to(addr), 5000); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %d, %v; want %q", name, got, err, test.says)
		}
	}
}

func TestLimit_ASilentServerIsNotJudged(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it accepts by its backlog, and never answers
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Limit(ctx, to(l.Addr().String()), 5000); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
