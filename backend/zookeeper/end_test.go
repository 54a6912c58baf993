package zookeeper

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
)

// endServers are servers for End, on pipes. Each of them calls the same function with the first bytes of the client.
type endServers struct {
	answer func(conn net.Conn, first []byte)
	refuse bool

	mu     sync.Mutex
	dialed []string
	writes [][]byte // the first of each connection
}

func (f *endServers) dial(_ context.Context, _, address string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dialed = append(f.dialed, address)
	if f.refuse {
		return nil, errors.New("refused")
	}
	conn, server := net.Pipe()
	go func() {
		defer server.Close()
		buf := make([]byte, 1024)
		n, err := server.Read(buf) // of a pipe: one write
		if err != nil {
			return
		}
		f.mu.Lock()
		f.writes = append(f.writes, buf[:n])
		f.mu.Unlock()
		f.answer(server, buf[:n])
	}()
	return conn, nil
}

// welcomeTo is the response to a connect request.
func welcomeTo(id int64) []byte {
	timeout := uint32(4000)
	if id == 0 {
		timeout = 0
	}
	b := be.AppendUint32(be.AppendUint32(nil, 0), timeout)
	return framed(str(be.AppendUint64(b, uint64(id)), strings.Repeat("p", 16)))
}

var endTicket = backend.Ticket{Service: "zookeeper", ID: 0x77, Password: []byte("abcdefghijklmnop"), Timeout: 10 * time.Second, Server: "s2:2181"}

var endNames = []string{"s1", "s2", "s3"}

func TestEnd_ConnectsAndClosesInOneWrite(t *testing.T) {
	t.Parallel()
	f := &endServers{answer: func(conn net.Conn, _ []byte) {
		conn.Write(slices.Concat(welcomeTo(0x77), framed(reply(xidAuth, 0)), framed(reply(endXid, 0))))
	}}
	if err := End(t.Context(), endNames, &Options{Dial: f.dial, Digest: "any:pw"}, endTicket); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(encodeConnect(0, time.Millisecond, 0x77, "abcdefghijklmnop"), encodeAuth("any:pw"), encodeClose(endXid))
	if len(f.writes) != 1 || string(f.writes[0]) != string(want) {
		t.Errorf("written first: %x, want %x", f.writes, want)
	}
	if !slices.Equal(f.dialed, []string{"s2:2181"}) {
		t.Errorf("dialed %v, want the server of the ticket", f.dialed)
	}
}

// A connection renews the session, so there is no second one after any answer.
func TestEnd_StopsAtTheFirstAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer []byte
		want   string // "" for nil
	}{
		"the session is over, or the password is wrong": {welcomeTo(0), ""},
		"it has ended meanwhile":                        {slices.Concat(welcomeTo(0x77), framed(reply(endXid, codeSessionExpired))), ""},
		"the server demands an identity":                {slices.Concat(welcomeTo(0x77), framed(reply(endXid, codeNeedsSASL))), "SASL"},
		"the server is closing":                         {slices.Concat(welcomeTo(0x77), framed(reply(endXid, codeClosing))), "does not close it"},
		"the credentials are refused":                   {slices.Concat(welcomeTo(0x77), framed(reply(xidAuth, codeAuthFailed))), "does not close it"},
		"no answer to the close request":                {welcomeTo(0x77), "did not say that it is closed"},
		"a malformed reply":                             {slices.Concat(welcomeTo(0x77), framed([]byte{1})), "malformed"},
		"a malformed response":                          {framed([]byte{1}), "malformed"},
		"another session":                               {welcomeTo(0x78), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &endServers{answer: func(conn net.Conn, _ []byte) { conn.Write(c.answer) }}
			err := End(t.Context(), endNames, &Options{Dial: f.dial}, endTicket)
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "abcdef")) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if len(f.dialed) != 1 {
				t.Errorf("dialed %v", f.dialed)
			}
		})
	}
}

func TestEnd_TriesEachServerOnce(t *testing.T) {
	t.Parallel()
	want := []string{"s2:2181", "s1:2181", "s3:2181"}
	for name, f := range map[string]*endServers{
		"refused":                   {refuse: true},
		"closed without an answer":  {answer: func(net.Conn, []byte) {}},
		"closed in the connect":     {answer: func(conn net.Conn, _ []byte) { conn.Write(welcomeTo(0x77)[:9]) }},
		"a frame of invalid length": {answer: func(conn net.Conn, _ []byte) { conn.Write([]byte("HTTP/1.1 400")) }},
	} {
		err := End(t.Context(), endNames, &Options{Dial: f.dial}, endTicket)
		if err == nil || !slices.Equal(f.dialed, want) {
			t.Errorf("%s: dialed %v, error %v", name, f.dialed, err)
		}
	}
	f := &endServers{refuse: true}
	if err := End(t.Context(), endNames, &Options{Dial: f.dial}, backend.Ticket{}); !errors.Is(err, backend.ErrInvalid) || len(f.dialed) > 0 {
		t.Errorf("without a session: %v, dialed %v", err, f.dialed)
	}
	if err := End(t.Context(), nil, nil, endTicket); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("without servers: %v", err)
	}
}

// Silent servers share two seconds, and ctx ends them too.
func TestEnd_IsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []time.Duration{time.Hour, time.Second} {
			f := &endServers{answer: func(conn net.Conn, _ []byte) { io.Copy(io.Discard, conn) }}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			begin := time.Now()
			err := End(ctx, endNames, &Options{Dial: f.dial}, endTicket)
			if took := time.Since(begin).Round(time.Millisecond); err == nil || took != min(limit, endLimit) || len(f.dialed) != 3 {
				t.Errorf("after %v, %d dialed: %v", took, len(f.dialed), err)
			}
			synctest.Wait()
		}
	})
}

// counted is a Reporter.
type counted struct {
	mu    sync.Mutex
	alive map[int64]bool // by each session that was opened
}

func (r *counted) Opened(t backend.Ticket)  { r.set(t.ID, true) }
func (r *counted) Ended(_ string, id int64) { r.set(id, false) }

func (r *counted) set(id int64, alive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alive[id] = alive
}

// A server makes a session, and then none answers until ctx ends.
func TestReporter_LearnsOfASessionThatWasNotOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &endServers{}
		f.answer = func(conn net.Conn, _ []byte) {
			f.mu.Lock()
			f.refuse = true
			f.mu.Unlock()
			conn.Write(welcomeTo(0x77))
			io.Copy(io.Discard, conn)
		}
		r := &counted{alive: make(map[int64]bool)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := New(endNames, &Options{Dial: f.dial, Digest: "any:pw", Reporter: r}).Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if alive, opened := r.alive[0x77]; !opened || alive {
			t.Errorf("opened %t, and not ended %t", opened, alive)
		}
	})
}
