package zookeeper

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/pace"
)

// naming returns a resolver that answers each name with these addresses, in this order.
func naming(t *testing.T, addresses ...string) *net.Resolver {
	t.Helper()
	var (
		mu   sync.Mutex
		over bool // a lookup that was given up can still dial
		wg   sync.WaitGroup
	)
	t.Cleanup(func() {
		mu.Lock()
		over = true
		mu.Unlock()
		wg.Wait()
	})
	answer := func(conn net.Conn) {
		defer conn.Close()
		for {
			var size [2]byte
			if _, err := io.ReadFull(conn, size[:]); err != nil {
				return
			}
			query := make([]byte, be.Uint16(size[:]))
			if _, err := io.ReadFull(conn, query); err != nil {
				return
			}
			const header, typeA = 12, 1
			end := header + slices.Index(query[header:], 0) + 1 // the end of the name
			question := query[header : end+4]
			out := append([]byte(nil), query[:2]...)
			out = append(out, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
			out = append(out, question...)
			if be.Uint16(query[end:]) == typeA {
				out[7] = byte(len(addresses))
				for _, a := range addresses {
					out = append(out, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
					out = append(out, net.ParseIP(a).To4()...)
				}
			}
			conn.Write(append(be.AppendUint16(nil, uint16(len(out))), out...))
		}
	}
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return nil, net.ErrClosed
		}
		ours, theirs := net.Pipe()
		wg.Go(func() { answer(theirs) })
		return ours, nil
	}}
}

// twoAddresses listens on the same port of two addresses.
func twoAddresses(t *testing.T, first, second string) (a, b net.Listener, port string) {
	t.Helper()
	for range 50 {
		a, err := net.Listen("tcp", first+":0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(a.Addr().String())
		if b, err := net.Listen("tcp", second+":"+port); err == nil {
			return a, b, port
		}
		a.Close() // the port is in use at the other address
	}
	t.Fatal("no port is free at both addresses")
	return
}

// A name has two addresses: one server accepts connections and stays silent, the other one
// works. Sessions find the working server whichever it is, and find the other one when
// the two exchange their roles. The silent one costs a session one attempt each time.
func TestServers_OneOfTheAddressesOfANameIsSilent(t *testing.T) {
	t.Parallel()
	a, b, port := twoAddresses(t, "127.0.0.2", "127.0.0.3")
	var well, tried atomic.Int32 // the index of the working server, and the attempts at the other one
	serve := func(n int32) func(net.Conn) {
		return func(conn net.Conn) {
			if well.Load() != n {
				tried.Add(1)
				swallow(conn)
				return
			}
			welcome(conn, 15_000)
			for r := range requests(conn) {
				switch {
				case well.Load() != n:
					return
				case !answerPing(conn, r):
					conn.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
				}
			}
		}
	}
	startOn(t, a, serve(0))
	startOn(t, b, serve(1))
	cfg, err := newConfig([]string{"name.test.:" + port}, &Options{Without: optional, SessionTimeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cfg.resolver = naming(t, "127.0.0.2", "127.0.0.3")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const rounds = 8
	for n := range int32(rounds) {
		well.Store(n % 2)
		s, err := (&service{cfg: cfg}).Open(ctx)
		if err != nil {
			t.Fatalf("open while server %d is well: %v", n%2, err)
		}
		if err := s.Sync(ctx, "/"); err != nil {
			t.Errorf("sync while server %d is well: %v", n%2, err)
		}
		// The working server ends the connection, and the session has to find the
		// other one.
		well.Store(1 - n%2)
		m := pace.Start(t, nil)
		s.Sync(ctx, "/")
		if phase, _ := s.Status(); m.Lost() > time.Second {
			t.Logf("round %d is not judged: the machine did other work for %v", n, m.Lost())
		} else if phase != backend.PhaseConnected || s.Err() != nil {
			t.Errorf("after server %d has become silent: %v, %v", n%2, phase, s.Err())
		}
		m.Stop()
		s.Close()
	}
	// Each session chooses at random, and never goes back to the address that it leaves.
	if n := tried.Load(); n > 2*rounds {
		t.Errorf("the silent server was tried %d times by %d sessions", n, rounds)
	}
}

// lines is a slog.Handler that keeps the records that it gets.
type lines struct {
	slog.Handler
	mu  sync.Mutex
	all []slog.Record
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, r)
	return nil
}

// unreachable returns the lines that report that no server can be reached, and drops all
// lines.
func (l *lines) unreachable() (times []time.Time, texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.all {
		if r.Level != slog.LevelWarn || r.Message != "coord: no server can be reached" {
			continue
		}
		var text strings.Builder
		r.Attrs(func(a slog.Attr) bool {
			text.WriteString(a.String() + " ")
			return true
		})
		times, texts = append(times, r.Time), append(texts, text.String())
	}
	l.all = nil
	return times, texts
}

// outageHandler is a slog.Handler that calls then when a line reports text as the reason why no server
// can be reached.
type outageHandler struct {
	slog.Handler
	text string
	then func()
}

func (h outageHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h outageHandler) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if r.Message == "coord: no server can be reached" && strings.Contains(a.String(), h.text) {
			h.then()
		}
		return true
	})
	return nil
}

// untilLogged sets a Logger, and returns a context that is canceled when it gets the text as the reason
// why no server can be reached. A busy machine may need any time for the attempt that fails so.
func untilLogged(t *testing.T, o *Options, text string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	o.Logger = slog.New(outageHandler{text: text, then: cancel})
	return ctx
}

func TestTheLogReportsThatNoServerCanBeReached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		var up atomic.Bool
		log := new(lines)
		b := New([]string{"one", "two"}, &Options{
			Without:        optional,
			SessionTimeout: time.Minute,
			Logger:         slog.New(log),
			Dial: func(_ context.Context, _, address string) (net.Conn, error) {
				if !up.Load() {
					return nil, errors.New("the reason of " + address)
				}
				ours, theirs := net.Pipe()
				wg.Go(func() {
					defer theirs.Close()
					welcome(theirs, 60_000)
					for r := range requests(theirs) {
						if !up.Load() {
							return
						}
						if !answerPing(theirs, r) {
							theirs.Write(framed(reply(int32At(r, 0), 0, str(nil, "/")...)))
						}
					}
				})
				return ours, nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := b.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		// Lines come at 0, 1, 3, 7, 15, 31, 63 s and then each minute, each with a pause of
		// up to 2 s after it.
		times, texts := log.unreachable()
		if n := len(times); n < 12 || n > 16 || times[0].Sub(start) > time.Second {
			t.Errorf("%d lines in ten minutes, from %v on", n, times[0].Sub(start))
		}
		for i := 2; i < len(times); i++ {
			if now, before := times[i].Sub(times[i-1]), times[i-1].Sub(times[i-2]); now < before-contact.MostPause || now > contact.MostReport+contact.MostPause {
				t.Errorf("line %d comes %v after the one before it, that one after %v", i, now, before)
			}
		}
		for _, text := range texts {
			if !strings.Contains(text, "one:2181: the reason of one:2181") || !strings.Contains(text, "two:2181: the reason of two:2181") {
				t.Errorf("the log contains: %s", text)
			}
		}

		// An open session logs it as well, and logs nothing while there is contact.
		up.Store(true)
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if times, _ := log.unreachable(); len(times) != 0 {
			t.Errorf("%d lines while there is contact", len(times))
		}
		up.Store(false)
		s.Sync(t.Context(), "/") // until the lease of 40 s has passed
		times, texts = log.unreachable()
		if n := len(times); n < 4 || n > 7 || !strings.Contains(texts[0], "session="+contact.Hex(s.ID())) {
			t.Errorf("%d lines in 40 s: %v", n, texts)
		}
		s.Close()
		wg.Wait()
	})
}

// A server that is behind closes each connection of a session that has seen more.
func TestZooKeeper_AServerThatMayBeBehindIsNamed(t *testing.T) {
	t.Parallel()
	serve := func(conn net.Conn, n int) {
		if n > 1 {
			nextRequest(conn)
			return
		}
		welcome(conn, 10_000)
		for r := range requests(conn) {
			if !answerPing(conn, r) {
				return
			}
		}
	}
	inBubble(t, Options{}, serve, func(t *testing.T, b backend.Backend) {
		s, err := b.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = s.Exists(ctx, "/a", nil)
		if !errors.Is(err, backend.ErrNoContact) || !strings.Contains(err.Error(), "it is behind what this session has seen, maxClientCnxns reached") {
			t.Errorf("exists: %v", err)
		}
	})
}
