// Package contact has what the backends of services with servers have in common: the lease of a
// session by its own clocks, the order and the pauses in which a session tries its servers, the
// reports while no server can be reached, and the checks of options.
package contact

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

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
		return Times{}, Invalid("SessionTimeout %v", timeout)
	case margin < 0 || margin >= t.Timeout:
		return Times{}, Invalid("LossMargin %v with SessionTimeout %v", margin, t.Timeout)
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

// Addresses returns the addresses of servers as host:port, each once. what names a server in
// errors.
func Addresses(servers []string, port, what string) ([]string, error) {
	if len(servers) == 0 {
		return nil, Invalid("no %s", what)
	}
	var all []string
	for _, server := range servers {
		address, err := withPort(server, port)
		if err != nil {
			return nil, Invalid("%s %q", what, server)
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
		// Without a port: a name, or an IPv6 address with or without brackets.
		host, port = strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"), defaultPort
		if strings.Contains(host, ":") && net.ParseIP(host) == nil {
			return "", err
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || number == 0 || strings.ContainsAny(host, " ,/") {
		return "", backend.ErrInvalid
	}
	return net.JoinHostPort(host, port), nil
}
