package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

const (
	endLimit = 2 * time.Second
	endXid   = 1

	// leastTimeout is the session timeout with which End connects. The servers grant their shortest one instead. If they
	// receive the connect request and not the close request, the session ends after that, and not after its own timeout.
	leastTimeout = time.Millisecond
)

// End ends the session of a ticket, whose process must have died. Its ephemeral nodes are deleted at once, not after the session
// timeout. The servers, TLS, Digest and Dial are those of the caller: of the ticket's server only its place in the order of the
// servers is used. Servers that demand an identity of each client (enforce.auth.enabled) need a Digest, of any user; permissions on the nodes are not needed.
//
// A connection to a session renews it. So End connects and closes in one write, and asks for the shortest timeout. It tries one server
// after the other, each once, and stops at the first that answers, and after two seconds or when ctx ends. It returns nil if the session
// has ended, then or before. The servers give the same answer to a wrong password, or close the connection before it.
//
// After an error the session lives for up to its timeout. The caller must not try again: each try can renew it.
func End(ctx context.Context, servers []string, o *Options, t backend.Ticket) error {
	fail := func(err error) error { return &backend.Error{Op: "end", Err: fmt.Errorf("%v: %w", t, err)} }
	cfg, err := newConfig(servers, o)
	if err != nil {
		return fail(err)
	}
	if t.ID == 0 {
		return fail(contact.Invalid("no session")) // the servers would make one
	}
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	lookup := contact.LookupWith(cfg.resolver)
	if cfg.dial != nil {
		lookup = nil
	}
	targets := contact.NewServers(cfg.servers, lookup, cfg.times.Timeout).Lookup(ctx, t.Server)
	var silent []error
	for i, target := range targets {
		if target.Address == "" {
			silent = append(silent, fmt.Errorf("%v: no address", target))
			continue
		}
		answered, err := cfg.endAt(ctx, target, t, len(targets)-i)
		switch {
		case err == nil:
			return nil
		case answered:
			return fail(fmt.Errorf("%v: %w", target, err))
		}
		silent = append(silent, fmt.Errorf("%v: %w", target, err))
	}
	return fail(errors.Join(silent...))
}

// endAt ends a session at one server, for which it takes its share of the time that is left. answered says that the server has
// answered, so that no other one may be tried.
func (c *config) endAt(ctx context.Context, target contact.Target, t backend.Ticket, share int) (answered bool, err error) {
	until, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(until)/time.Duration(share))
	defer cancel()
	raw, err := c.dialer()(ctx, "tcp", target.Address)
	if err != nil {
		return false, err
	}
	defer raw.Close()
	conn, err := c.secure(ctx, target, raw)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	request := encodeConnect(0, leastTimeout, t.ID, string(t.Password))
	if c.digest != nil {
		request = append(request, encodeAuth(c.digest())...)
	}
	request = append(request, encodeClose(endXid)...)
	if _, err := conn.Write(request); err != nil {
		return false, err
	}
	r := bufio.NewReader(conn)
	hello, err := readSmall(r)
	if err != nil {
		return false, err
	}
	welcome, err := parseConnectResponse(hello)
	switch {
	case err != nil:
		return true, err
	case welcome.session == 0:
		return true, nil
	case welcome.session != t.ID:
		return true, errMalformed
	}
	for {
		body, err := readSmall(r)
		if err == nil && len(body) < replySize {
			err = errMalformed
		}
		if err != nil {
			return true, fmt.Errorf("the server has renewed the session, and did not say that it is closed: %w", err)
		}
		switch h := parseReplyHeader(body); {
		case h.code == codeSessionExpired, h.code == codeUnknownSession, h.xid == endXid && h.code == codeOK:
			return true, nil
		case h.code != codeOK:
			return true, fmt.Errorf("the server has renewed the session, and does not close it: %s", serverCode(h.code))
		}
	}
}

// readSmall reads the body of a frame of the handshake, or of a reply without a body of its own.
func readSmall(r *bufio.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := int(int32At(head[:], 0))
	if size < 0 || size > zkBuffer {
		return nil, forbidden(head[:])
	}
	body := make([]byte, size)
	_, err := io.ReadFull(r, body)
	return body, err
}
