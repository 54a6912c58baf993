package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/fence"
)

// resource is a server that writes under the lock of a path.
func (d *database) resource(path string) (*httptest.Server, *http.Client) {
	handler := fence.Handler(func(*http.Request) string { return path }, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := fence.FromContext(r.Context())
		if !ok {
			d.t.Error("no token in the context")
		}
		switch err := d.f.Tx(r.Context(), d.db, token, d.insert(token.Number)); {
		case errors.Is(err, coord.ErrFenced):
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		case err != nil:
			d.t.Error(err)
		}
	}))
	server := httptest.NewServer(handler)
	d.t.Cleanup(server.Close)
	client := server.Client()
	client.Transport = &fence.Transport{Base: client.Transport}
	return server, client
}

func put(ctx context.Context, t *testing.T, c *http.Client, url string, fields ...string) (int, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields {
		r.Header.Add(fence.Header, f)
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, nil
}

func TestTransport_SendsTheTokenOfAHold(t *testing.T) {
	d := newDatabase(t, "sqlite")
	c, _ := client(t, memory.New(nil), "a")
	path := "/locks/a b%ü;\"'"
	m := coord.NewMutex(c, path, nil)
	server, web := d.resource(path)
	var early context.Context // of the first holder
	for i := range 2 {
		h, err := m.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx := fence.NewContext(t.Context(), fence.Of(h))
		if status, err := put(ctx, t, web, server.URL); status != http.StatusOK || err != nil {
			t.Errorf("holder %d: %d, %v", i, status, err)
		}
		if early == nil {
			// As in a process that does not know that its hold has ended.
			late, err := fence.ParseToken(fence.Of(h).String())
			if err != nil {
				t.Fatal(err)
			}
			early = fence.NewContext(t.Context(), late)
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		if _, err := put(ctx, t, web, server.URL); !errors.Is(err, coord.ErrReleased) {
			t.Errorf("holder %d, after its release: %v", i, err)
		}
	}
	if status, err := put(early, t, web, server.URL); status != http.StatusPreconditionFailed || err != nil {
		t.Errorf("the first holder, late: %d, %v", status, err)
	}
	if n := len(d.written()); n != 2 {
		t.Errorf("%d writes, want 2", n)
	}
}

func TestHandler_RefusesRequestsWithoutTheToken(t *testing.T) {
	d := newDatabase(t, "sqlite")
	server, web := d.resource("/p")
	for _, x := range []struct {
		fields []string
		want   int
	}{
		{nil, http.StatusPreconditionRequired},
		{[]string{""}, http.StatusBadRequest},
		{[]string{"/p"}, http.StatusBadRequest},
		{[]string{"/p 0"}, http.StatusBadRequest},
		{[]string{"/q 5"}, http.StatusBadRequest},
		{[]string{"/p 5", "/p 6"}, http.StatusBadRequest},
		{[]string{"/p 5"}, http.StatusOK},
	} {
		if status, err := put(t.Context(), t, web, server.URL, x.fields...); status != x.want || err != nil {
			t.Errorf("%q: %d, %v, want %d", x.fields, status, err, x.want)
		}
	}
	d.wantWritten(5)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransport_WithARequestThatHasNoFields(t *testing.T) {
	var sent []string
	transport := &fence.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.Header.Get(fence.Header))
		return new(http.Response), nil
	})}
	r := new(http.Request)
	if _, err := transport.RoundTrip(r.WithContext(fence.NewContext(t.Context(), tokenOf(5)))); err != nil {
		t.Error(err)
	}
	_, err := transport.RoundTrip(r.WithContext(fence.NewContext(t.Context(), fence.Token{Path: "p", Number: 5})))
	wantErr(t, err, coord.ErrInvalid, coord.ErrBadPath)
	if !slices.Equal(sent, []string{"/p 5"}) || r.Header != nil {
		t.Errorf("sent: %q; the fields of the caller's request: %v", sent, r.Header)
	}
}

// The hold ends while the server works: the client gives up, and the server rolls back.
func TestTransport_WithARequestThatEndsWithItsHold(t *testing.T) {
	d := newDatabase(t, "sqlite")
	h, expire := lock(t)
	ended := make(chan error, 1)
	server := httptest.NewServer(fence.Handler(func(*http.Request) string { return "/p" }, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // so that the server notices the end of the connection
		token, _ := fence.FromContext(r.Context())
		ended <- d.f.Tx(r.Context(), d.db, token, func(ctx context.Context, tx *sql.Tx) error {
			expire()
			<-ctx.Done()
			return nil
		})
	})))
	defer server.Close()
	web := server.Client()
	web.Transport = &fence.Transport{Base: web.Transport}
	ctx := fence.NewContext(h.Context(t.Context()), fence.Of(h))
	if _, err := put(ctx, t, web, server.URL); !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrLost) {
		t.Errorf("error %v", err)
	}
	wantErr(t, <-ended, context.Canceled)
}
