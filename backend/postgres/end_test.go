package postgres_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
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

// The reply to the request that opens a session is lost. The next attempt makes another session, so the first one holds nothing.
func TestReporter_LearnsThatASessionWasNotOpened(t *testing.T) {
	t.Parallel()
	r := coordtest.NewReports("postgres")
	s := used.newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute, Reporter: r})
	l := s.link("a")
	opened(t, l).Close() // makes the layout
	before, _ := r.List()
	lost := l.line.Drop(func(f zkproxy.Frame) bool { return f.Opcode == zkproxy.OpConnect }, zkproxy.DropReply)
	session := opened(t, l)
	<-lost.Hit()
	tickets, ended := r.List()
	tickets = tickets[len(before):]
	if len(tickets) != 2 || tickets[1].ID != session.ID() {
		t.Fatalf("opened %v", tickets)
	}
	if !slices.Contains(ended, tickets[0].ID) || slices.Contains(ended, session.ID()) {
		t.Errorf("opened %v, ended %x", tickets, ended)
	}
}

func TestEnd_OverTLS(t *testing.T) {
	t.Parallel()
	e := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	authority, foreign := certificates(t), certificates(t)
	if err := serveTLS(t, e, authority.KeyStore); err != nil {
		t.Fatal(err)
	}
	url := func(a *zktest.TLSOptions) string {
		return strings.Replace(e.URL(""), "sslmode=disable", "sslmode=verify-full&sslrootcert="+a.TrustStore, 1)
	}
	r := coordtest.NewReports("postgres")
	// Nothing tells when the server has read its new settings.
	for limit := time.Now().Add(time.Minute); ; {
		conn, err := pgconn.Connect(t.Context(), url(authority))
		if err == nil {
			conn.Close(t.Context())
			break
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	s := opened(t, postgres.New(url(authority), &postgres.Options{SessionTimeout: time.Minute, Reporter: r}))
	tickets, _ := r.List()
	if err := postgres.End(t.Context(), url(foreign), nil, tickets[0]); err == nil {
		t.Error("End has ended the session at a server of another authority")
	}
	if err := s.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	if err := postgres.End(t.Context(), url(authority), nil, tickets[0]); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
}

func certificates(t *testing.T) *zktest.TLSOptions {
	t.Helper()
	c, err := zktest.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return c.ServerTLS()
}

// serveTLS gives a server a key with its certificate.
func serveTLS(t *testing.T, e *pgtest.Server, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	own := filepath.Join(e.DataDir(), "own.pem")
	if err := os.WriteFile(own, data, 0o600); err != nil {
		return err
	}
	info, err := os.Stat(e.DataDir())
	if err != nil {
		return err
	}
	user := info.Sys().(*syscall.Stat_t)
	if err := os.Chown(own, int(user.Uid), int(user.Gid)); err != nil {
		return err
	}
	for _, command := range []string{
		"ALTER SYSTEM SET ssl_cert_file = 'own.pem'", "ALTER SYSTEM SET ssl_key_file = 'own.pem'", "ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()",
	} {
		if _, err := e.Exec(t.Context(), "", command); err != nil {
			return err
		}
	}
	return nil
}
