package postgres_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestEnd_DeletesTheNodesOfASession(t *testing.T) {
	t.Parallel()
	r := coordtest.NewReports("postgres")
	s := used.newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute, Reporter: r})
	session := opened(t, s.link("a"))
	if _, err := session.Commit(t.Context(), backend.Create("/held", nil, backend.Ephemeral)); err != nil {
		t.Fatal(err)
	}
	tickets, ended := r.List()
	if len(tickets) != 1 || tickets[0].ID != session.ID() || tickets[0].Timeout != time.Minute || tickets[0].Service != "postgres" || len(ended) > 0 {
		t.Fatalf("reported %v and %v, want %v", tickets, ended, session)
	}
	other := opened(t, s.link("other"))
	for range 2 {
		if err := postgres.End(t.Context(), pgtest.URL(s.server, ""), &postgres.Options{Schema: s.opts.Schema}, tickets[0]); err != nil {
			t.Error(err)
		}
		if err := other.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Exists(t.Context(), "/held", nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("the node is there: %v", err)
		}
	}
	<-session.Done()
	session.Close() // joins what reports the end
	other.Close()
	if _, ended := r.List(); !slices.Contains(ended, session.ID()) || !slices.Contains(ended, other.ID()) {
		t.Errorf("ended %v", ended)
	}
	for _, url := range []string{"host=127.0.0.1 port=1 user=x", "no string"} {
		if err := postgres.End(t.Context(), url, nil, tickets[0]); err == nil {
			t.Errorf("without a server: %s", url)
		}
	}
}
