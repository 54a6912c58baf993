// Package contact has what the backends of services with servers have in common: the lease of a
// session by its own clocks, the order and the pauses in which a session tries its servers, the
// reports while no server can be reached, and the checks of options.
package contact

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// Hex formats the id of a session as the client and ZooKeeper's own tools do. etcd's leave 0x out.
func Hex(id int64) string { return "0x" + strconv.FormatUint(uint64(id), 16) }

// CommitError returns the error of Commit for operations that failed with err. An error that is a *backend.Error already, such
// as the refusal of one operation, stays as it is.
func CommitError(ops []backend.Op, err error) error {
	if e := (*backend.Error)(nil); errors.As(err, &e) {
		return err
	}
	e := &backend.Error{Op: "commit", Path: ops[0].Path, Index: -1, Err: err}
	if len(ops) == 1 {
		e.Op = ops[0].Kind.String()
	}
	return e
}

// DefaultTimeout is the session timeout of options that have none.
const DefaultTimeout = 10 * time.Second

// Invalid returns an error that matches backend.ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", backend.ErrInvalid, fmt.Sprintf(format, args...))
}

// Times are the options SessionTimeout and LossMargin.
type Times struct {
	Timeout time.Duration // to ask for
	Margin  time.Duration // 0: a third of the granted timeout
}

// CheckTimes returns the times of options; most is the longest timeout that the service can grant.
func CheckTimes(timeout, margin, most time.Duration) (Times, error) {
	t := Times{timeout, margin}
	if t.Timeout == 0 {
		t.Timeout = DefaultTimeout
	}
	switch {
	case t.Timeout < time.Millisecond || t.Timeout > most:
		return Times{}, Invalid("SessionTimeout %v, want %v to %v", timeout, time.Millisecond, most)
	case margin < 0 || margin >= t.Timeout:
		return Times{}, Invalid("LossMargin %v, want 0 or more and less than SessionTimeout %v", margin, t.Timeout)
	}
	return t, nil
}

// Lease returns the length of the lease for a granted timeout.
func (t Times) Lease(granted time.Duration) time.Duration {
	if t.Margin > 0 {
		return granted - t.Margin
	}
	return granted - granted/3
}

// Split returns the servers of a list whose elements can be lists themselves, with commas, as the
// connection strings of other clients are.
func Split(servers []string) []string {
	var all []string
	for _, server := range servers {
		for one := range strings.SplitSeq(server, ",") {
			all = append(all, strings.TrimSpace(one))
		}
	}
	return all
}

// Addresses returns the addresses of servers as host:port, each once. what names a server in
// errors.
func Addresses(servers []string, port, what string) ([]string, error) {
	if len(servers) == 0 {
		return nil, Invalid("no %s given", what)
	}
	var all []string
	for _, server := range Split(servers) {
		host, path, _ := strings.Cut(server, "/")
		scheme, rest, url := strings.Cut(server, "://")
		switch {
		case server == "":
			return nil, Invalid("an empty %s in %q", what, servers)
		case url:
			return nil, Invalid("%s %q: write %q, without %s://", what, server, rest, scheme)
		case path != "":
			// Not taken for a namespace here: a backend that wraps this one, and does not know of it,
			// would put the nodes into another tree.
			return nil, Invalid("%s %q: write %q, and the path as Namespace %q of coord.Options", what, server, host, "/"+path)
		}
		address, err := withPort(host, port)
		if err != nil {
			return nil, Invalid("%s %q: write host or host:port", what, server)
		}
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all, nil
}

// withPort returns the address of a server as host:port.
func withPort(server, defaultPort string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		// Without a port: a name, or an IPv6 address with or without brackets and a zone.
		host, port = strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"), defaultPort
		if _, bad := netip.ParseAddr(host); strings.Contains(host, ":") && bad != nil {
			return "", err
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || number == 0 || strings.ContainsAny(host, " ,/") {
		return "", backend.ErrInvalid
	}
	return net.JoinHostPort(host, port), nil
}

// HostOf returns the host in the address of a server, as it is in the server's certificate: without
// the zone of an IPv6 address, which means something to this machine only.
func HostOf(server string) string {
	host, _, _ := net.SplitHostPort(server)
	if a, err := netip.ParseAddr(host); err == nil {
		return a.WithZone("").String()
	}
	return host
}
