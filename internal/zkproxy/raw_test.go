package zkproxy

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// A fakeServer accepts connections on which the test acts as the server.
type fakeServer struct{ net.Listener }

func newFakeServer(t *testing.T) fakeServer {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return fakeServer{l}
}

func (s fakeServer) addr() string { return s.Addr().String() }

// through returns both ends of a new connection through the proxy.
func (s fakeServer) through(t *testing.T, p *Proxy) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = s.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	for _, c := range []net.Conn{client, server} {
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
	}
	return client, server
}

func TestRawPassesAnyBytes(t *testing.T) {
	t.Parallel()
	target := newFakeServer(t)
	p, err := NewRaw(target.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client, server := target.through(t, p)
	big := bytes.Repeat([]byte("not frames "), 100_000)
	sent := startCall(func() error { _, err := client.Write(big); return err })
	got := make([]byte, len(big))
	if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, big) {
		t.Fatalf("up: %v, equal %v", err, bytes.Equal(got, big))
	}
	if err := await(t, sent, "write"); err != nil {
		t.Fatal(err)
	}
	if c := p.Count(); c.BytesUp != int64(len(big)) || c.BytesDown != 0 || c.AllRequests() != 0 || c.Connections != 1 {
		t.Errorf("counts: %v", c)
	}

	// Held bytes are delivered afterwards, in order.
	p.Hold(true)
	for _, s := range []string{"a", "b"} {
		if _, err := server.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "both bytes", func() bool { return p.Count().BytesDown == 2 })
	p.Hold(false)
	if _, err := io.ReadFull(client, got[:2]); err != nil || string(got[:2]) != "ab" {
		t.Errorf("down: %q, %v", got[:2], err)
	}

	// A black hole loses them.
	p.Blackhole(true)
	if _, err := client.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	p.Blackhole(false)
	if n, err := server.Read(got); n != 0 || err == nil {
		t.Errorf("after the black hole the server read %q, %v", got[:n], err)
	}
	if n, err := client.Read(got); n != 0 || err == nil {
		t.Errorf("after the black hole the client read %q, %v", got[:n], err)
	}

	client, server = target.through(t, p)
	p.Cut()
	if n, err := server.Read(got); n != 0 || err == nil {
		t.Errorf("after the cut the server read %q, %v", got[:n], err)
	}
	if n, err := client.Read(got); n != 0 || err == nil {
		t.Errorf("after the cut the client read %q, %v", got[:n], err)
	}
}

func TestMalformedFramesCutTheConnection(t *testing.T) {
	t.Parallel()
	connectRequest := frameOf(make([]byte, 45))
	connectResponse := frameOf(make([]byte, 37))
	cases := map[string]struct{ up, down []byte }{
		"negative length":            {up: []byte{0xff, 0xff, 0xff, 0xff}},
		"length over the limit":      {up: []byte{0x04, 0x00, 0x00, 0x01}},
		"a four-letter word":         {up: []byte("srvr")},
		"empty connect request":      {up: frameOf(nil)},
		"short request":              {up: append(bytes.Clone(connectRequest), frameOf(make([]byte, 7))...)},
		"negative length of a reply": {up: connectRequest, down: []byte{0x80, 0, 0, 0}},
		"short connect response":     {up: connectRequest, down: frameOf(make([]byte, 15))},
		"short reply":                {up: connectRequest, down: append(bytes.Clone(connectResponse), frameOf(make([]byte, 15))...)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			target := newFakeServer(t)
			p := proxyFor(t, target.addr())
			client, server := target.through(t, p)
			if _, err := client.Write(c.up); err != nil {
				t.Fatal(err)
			}
			if c.down != nil {
				if _, err := server.Write(c.down); err != nil {
					t.Fatal(err)
				}
			}
			for side, conn := range map[string]net.Conn{"client": client, "server": server} {
				if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
					t.Errorf("the %s's connection is still open", side)
				}
			}
			target.through(t, p) // the proxy still works
		})
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

func TestCloseIsIdempotentAndStopsListening(t *testing.T) {
	t.Parallel()
	target := newFakeServer(t)
	p, err := New(target.addr())
	if err != nil {
		t.Fatal(err)
	}
	client, _ := target.through(t, p)
	p.Hold(true)
	p.Blackhole(true)
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if n, err := client.Read(make([]byte, 1)); n != 0 || err == nil || isTimeout(err) {
		t.Errorf("read after Close: %d, %v", n, err)
	}
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		c.Close()
		t.Error("something listens after Close")
	}
}
