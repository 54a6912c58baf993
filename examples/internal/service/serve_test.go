package service

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend"
)

func TestTheCommandLineOfASiteIsChecked(t *testing.T) {
	var name *string
	site := &Site{
		Listen: "127.0.0.1:0", Page: "/page",
		Flags: func(flags *flag.FlagSet) { name = flags.String("name", "a", "the name") },
		New: func(backend.Backend) (http.Handler, func(context.Context) error, error) {
			return nil, nil, errors.New("as " + *name)
		},
	}
	for _, c := range []struct{ args, want string }{
		{"-backend consul", `-backend "consul"`},
		{"-backend zookeeper", `-backend "zookeeper"`},
		{"-backend etcd", `-backend "etcd"`},
		{"-servers localhost:2181", `-servers "localhost:2181"`},
		{"-session soon", "-session"},
		{"-color", "-color"},
		{"please", `"please"`},
	} {
		err := Serve(t.Context(), "example", strings.Fields(c.args), io.Discard, site)
		if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a usage error that names %s", c.args, err, c.want)
		}
	}
	for _, args := range []string{"-name b", "-name b -backend zookeeper -servers host:1", "-name b -backend etcd -servers host:1"} {
		if err := Serve(t.Context(), "example", strings.Fields(args), io.Discard, site); err == nil || err.Error() != "as b" {
			t.Errorf("%s: %v", args, err)
		}
	}
	var out bytes.Buffer
	if err := Serve(t.Context(), "example", []string{"-h"}, &out, site); err != nil || !strings.Contains(out.String(), "-name string") {
		t.Errorf("-h: %v\n%s", err, out.String())
	}
}

// TestASiteServesUntilItsWorkEnds: a request that waits when ctx ends is answered.
func TestASiteServesUntilItsWorkEnds(t *testing.T) {
	wrong := errors.New("no permission")
	for _, fails := range []error{nil, wrong} {
		ctx, stop := context.WithCancel(t.Context())
		began, resigned := make(chan struct{}), make(chan struct{})
		handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-resigned
			io.WriteString(w, "the work has ended")
		})
		work := func(ctx context.Context) error {
			<-ctx.Done()
			close(resigned)
			if fails != nil {
				return fails
			}
			return context.Cause(ctx)
		}
		l := listen(t)
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, l, handler, work) }()
		go func() { <-began; stop() }()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get("http://" + l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(text) != "the work has ended" {
			t.Errorf("the page is %q", text)
		}
		if err := <-ended; !errors.Is(err, fails) || (fails == nil) != (err == nil) {
			t.Errorf("the site ends with %v, want %v", err, fails)
		}
	}
}

func TestASiteThatCannotServeStopsItsWork(t *testing.T) {
	l := listen(t)
	l.Close()
	err := serve(t.Context(), l, http.NotFoundHandler(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	if !errors.Is(err, net.ErrClosed) {
		t.Errorf("it ends with %v", err)
	}
}

// TestASiteEndsBesideAnOpenConnection: a client that has sent nothing, or not all of a request,
// does not make the end of the site a failure.
func TestASiteEndsBesideAnOpenConnection(t *testing.T) {
	for _, sent := range []string{"", "GET / HTTP/1.1\r\n"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			l := make(pipes)
			ended := make(chan error, 1)
			go func() {
				ended <- serve(ctx, l, http.NotFoundHandler(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			}()
			client, server := net.Pipe()
			l <- server
			if _, err := io.WriteString(client, sent); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			stop()
			if err := <-ended; err != nil {
				t.Errorf("after %q the site ends with %v", sent, err)
			}
			if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("after %q the client reads %d bytes, %v, want an end", sent, n, err)
			}
		})
	}
}

// pipes is a listener of connections without a network.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}
