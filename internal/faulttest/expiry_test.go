//go:build linux

package faulttest

import (
	"testing"
	"time"

	"github.com/go-coord/coord/internal/coordtest"
)

// newExpiry returns the control for a process with the timeout that is killed or cut off.
func newExpiry(t *testing.T, e servers, timeout time.Duration) *coordtest.Expiry {
	t.Helper()
	l := newLine(t, e.Addrs()[0])
	return coordtest.NewExpiry(t, backendAt([]string{l.Addr()}, timeout, 0), backendAt(e.Addrs(), mostTimeout, 0), timeout, l.Blackhole)
}
