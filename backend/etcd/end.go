package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

const endLimit = 2 * time.Second

// End ends the session of a ticket, whose process must have died: it revokes the lease, so that the session's nodes are deleted at once, not after
// the session timeout. The endpoints, TLS, user and Dial are those of the caller: of the ticket's server only its place
// in the order of the endpoints is used. The user needs the permission to write the session's nodes, as that of the session has.
//
// End tries one endpoint after the other, each once, and stops at the first that executes or refuses the request, and after two seconds or when ctx ends. It returns
// nil if the session has ended, then or before. After an error the session lives for up to its timeout; an attempt does not renew it.
func End(ctx context.Context, endpoints []string, o *Options, t backend.Ticket) error {
	fail := func(err error) error { return &backend.Error{Op: "end", Err: fmt.Errorf("%v: %w", t, err)} }
	cfg, err := newConfig(endpoints, o)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	targets := contact.NewServers(cfg.servers, cfg.lookup, cfg.times.Timeout).Lookup(ctx, t.Server)
	var silent []error
	for i, target := range targets {
		until, _ := ctx.Deadline()
		attempt, cancel := context.WithTimeout(ctx, time.Until(until)/time.Duration(len(targets)-i))
		err := cfg.endAt(attempt, target, t.ID)
		cancel()
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%v: %w", target, explain(err, cfg.tls != nil))
		switch status.Code(err) {
		case codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated:
			return fail(err)
		}
		silent = append(silent, err)
	}
	return fail(errors.Join(silent...))
}

// endAt revokes a lease at one server.
func (c *config) endAt(ctx context.Context, target contact.Target, id int64) error {
	if target.Address == "" {
		return errors.New("no address")
	}
	l, err := c.dialLink(ctx, &contact.Attempt{Target: target}, nil)
	if err != nil {
		return err
	}
	defer l.close()
	defer l.fail(errSpent)
	return c.revoke(ctx, l.leases, id)
}
