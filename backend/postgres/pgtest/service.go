package pgtest

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/internal/rawlink"
)

// Each runs f as coordtest.Each does, and in a third subtest, "postgres", on a server of its own
// without fsync. That is skipped, or fails, as Require does. With go test -short f runs in memory only.
func Each(t *testing.T, o *coordtest.Options, f func(t *testing.T, s *coordtest.Service)) {
	t.Helper()
	coordtest.Each(t, o, f)
	t.Run("postgres", func(t *testing.T) {
		if testing.Short() {
			t.Skip("-short: in memory only")
		}
		f(t, Start(t, &Options{Settings: map[string]string{"fsync": "off"}}).Service(t, o))
	})
}

// Service returns a service in the database postgres, in a schema of its own. That of the first one on a server is "coord", so
// that postgres.Check finds it without an option.
func (s *Server) Service(tb testing.TB, o *coordtest.Options) *coordtest.Service {
	var timeout time.Duration
	if o != nil {
		timeout = o.SessionTimeout
	}
	s.mu.Lock()
	s.services++
	schema := "" // the default
	if s.services > 1 {
		schema = fmt.Sprintf("coord%d", s.services)
	}
	s.mu.Unlock()
	return coordtest.New(tb, rawlink.Provider{
		Addr: s.Addr(),
		Backend: func(addr string) backend.Backend {
			return postgres.New(URL(addr, ""), &postgres.Options{Schema: schema, SessionTimeout: timeout})
		},
		Expire: func(ctx context.Context, session int64) error {
			_, err := s.Exec(ctx, "", fmt.Sprintf("SELECT %s.finish(%d)", cmp.Or(schema, "coord"), session))
			return err
		},
	}, o)
}
