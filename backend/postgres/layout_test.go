package postgres_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
)

// The first clients of a schema make it at once, and each gets a session.
func TestLayout_ManyFirstClients(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			session, err := s.named().Open(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			session.Close()
		})
	}
	wg.Wait()
}

// Open uses a newer layout only if its column oldest allows that. It refuses the schema of another application, and does not
// change it.
func TestLayout_OthersSchemas(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, sql string
		before    bool // the library has made the schema before
		says      string
	}{
		{"newer and usable", "UPDATE {s}.layout SET version = 99", true, ""},
		{"too new", "UPDATE {s}.layout SET version = 99, oldest = 99", true, "layout 99"},
		{"a table of a name", "CREATE SCHEMA {s} CREATE TABLE node (x int)", false, "not one of coord"},
		{"another layout", "CREATE SCHEMA {s} CREATE TABLE layout (x int)", false, "not one of coord"},
		{"an empty layout", "DELETE FROM {s}.layout", true, "not one of coord"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute})
			if test.before {
				opened(t, s.named())
			}
			if err := s.exec(strings.ReplaceAll(test.sql, "{s}", s.opts.Schema)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			session, err := s.named().Open(ctx)
			if err == nil {
				defer session.Close()
			}
			if (err == nil) != (test.says == "") || err != nil && (!errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("Open: %v, want %q", err, test.says)
			}
			if strings.HasPrefix(test.sql, "CREATE") {
				if err := s.exec(strings.ReplaceAll("DO $$ BEGIN ASSERT (SELECT count(*) = 1 FROM pg_tables WHERE schemaname = '{s}'); END $$", "{s}", s.opts.Schema)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
