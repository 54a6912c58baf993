package postgres_test

import (
	"net"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
)

// silentHost accepts connections and answers nothing, as a server that hangs.
func silentHost(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// A host that answers nothing does not keep a session from the next one: neither when it is opened nor
// when it connects again within its lease.
func TestHosts_ASilentOneIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 10 * time.Second})
	l := s.link("a")
	b := postgres.New(urlOf([]string{silentHost(t), l.line.Addr()}), &s.opts)
	a, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	_, changed := a.Status()
	l.line.Cut()
	<-changed
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	if phase, _ := a.Status(); phase != backend.PhaseConnected {
		t.Errorf("phase %v", phase)
	}
}
