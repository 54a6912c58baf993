//go:build linux

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// withoutSync makes servers faster. Tests do not end the machine.
var withoutSync = map[string]string{"fsync": "off", "max_connections": "300"}

// postgresServer is the server of the tests that change only its nodes.
var postgresServer = pgtest.Shared{Options: &pgtest.Options{Settings: withoutSync}}

func onPostgres(t *testing.T) *servers {
	t.Helper()
	e := postgresServer.Get(t)
	sql(t, e, postgres.Migration("")) // coordctl does not make the schema
	return &servers{
		"postgres", []string{e.Addr()}, zkproxy.NewRaw,
		postgres.New(e.URL(""), &postgres.Options{SessionTimeout: 8 * time.Second, ContainerInterval: 24 * time.Hour}),
		func(ctx context.Context, session int64) error {
			_, err := e.Exec(ctx, "", fmt.Sprintf("SELECT coord.finish(%d)", session))
			return err
		},
	}
}

// sql runs commands as the superuser.
func sql(t *testing.T, e *pgtest.Server, commands ...string) (out string) {
	t.Helper()
	for _, c := range commands {
		var err error
		if out, err = e.Exec(t.Context(), "", c); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// Check names what is missing, and what it says to run mends it. It makes no schema.
func TestPostgres_CheckSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	e := pgtest.Start(t, &pgtest.Options{Settings: withoutSync})
	sql(t, e, "CREATE ROLE app LOGIN")
	ctl := func(role string, args ...string) (int, string) {
		t.Helper()
		status, out, text := inProcess(t, "", append([]string{"-backend", "postgres", "-wait", "1m", "-servers", "host=127.0.0.1 user=" + role + " port=" + strings.Split(e.Addr(), ":")[1]}, args...)...)
		return status, out + text
	}
	check := func(status int, want string, args ...string) string {
		t.Helper()
		got, out := ctl("app", append([]string{"check"}, args...)...)
		if got != status || !strings.Contains(out, want) {
			t.Fatalf("check: status %d, want %d with %q:\n%s", got, status, want, out)
		}
		return out
	}

	check(exitNo, "FAILED  schema       coord is missing, and the role app may not create it")
	if status, out := ctl("postgres", "check"); status != exitNo || !strings.Contains(out, "coord is missing: run coordctl postgres migrate") {
		t.Errorf("check as a role that may create: %d, %s", status, out)
	}
	if status, out := ctl("postgres", "tree"); status != exitUsage || !strings.Contains(out, "coordctl postgres migrate") {
		t.Errorf("tree without a schema: %d, %s", status, out)
	}
	if status, out := ctl("app", "postgres", "migrate"); status != exitFailed || !strings.Contains(out, "permission denied") {
		t.Errorf("migrate as app: %d, %s", status, out)
	}
	if got := sql(t, e, "SELECT count(*) FROM pg_namespace WHERE nspname = 'coord'"); got != "0" {
		t.Fatal("a verb other than migrate has made the schema")
	}
	for _, want := range []string{"schema coord: made with layout 1\n", "schema coord: layout 1, nothing to do\n"} {
		if status, out := ctl("postgres", "postgres", "migrate"); status != 0 || out != want {
			t.Errorf("migrate: %d, %q, want %q", status, out, want)
		}
	}
	if status, out := ctl("postgres", "postgres", "migrate", "--schema", "other", "--json"); status != 0 || out != `{"schema":"other","layout":1,"before":0}`+"\n" {
		t.Errorf("migrate --json: %d, %s", status, out)
	}
	_, printed := ctl("postgres", "postgres", "migrate", "--print", "--schema", "printed")
	sql(t, e, printed)
	if status, out := ctl("postgres", "--schema", "printed", "check"); status != 0 {
		t.Errorf("a schema by the printed SQL: %d, %s", status, out)
	}

	out := check(exitNo, "FAILED  rights       the role app may not use the schema coord")
	_, grants, _ := strings.Cut(out, "an administrator runs ")
	grants, _, _ = strings.Cut(grants, "\n")
	sql(t, e, "GRANT USAGE ON SCHEMA coord TO app")
	check(exitNo, "FAILED  rights       the role app may not read coord.layout")
	sql(t, e, grants)
	check(0, "ok      rights ")
	sql(t, e, "REVOKE DELETE, UPDATE ON coord.node FROM app")
	check(exitNo, "the role app lacks DELETE on node, UPDATE on node: an administrator runs GRANT")
	sql(t, e, grants, "REVOKE EXECUTE ON FUNCTION coord.beat FROM PUBLIC, app")
	check(exitNo, "the role app may not execute beat")
	sql(t, e, grants, "REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC")
	check(exitNo, "the role app may not execute pg_control_system of PostgreSQL")
	sql(t, e, "GRANT EXECUTE ON FUNCTION pg_control_system TO PUBLIC")

	for _, tc := range []struct {
		version, oldest, status int
		want                    string
	}{
		{0, 0, exitNo, "coord has layout 0, this version of coord wants 1: run coordctl postgres migrate"},
		{99, 99, exitNo, "coord has layout 99, this version of coord knows 1: update coordctl"},
		{99, 1, 0, "ok      schema       coord has layout 99, newer"},
		{1, 1, 0, "ok      schema       coord has layout 1\n"},
	} {
		sql(t, e, fmt.Sprintf("UPDATE coord.layout SET version = %d, oldest = %d", tc.version, tc.oldest))
		check(tc.status, tc.want)
	}
	check(exitNo, "public has no table layout", "--schema", "public")

	sql(t, e, "ALTER ROLE app SET synchronous_commit = off", "ALTER ROLE app SET statement_timeout = '30s'", "ALTER ROLE postgres CONNECTION LIMIT 1", "ALTER SYSTEM SET fsync = on", "SELECT pg_reload_conf()")
	eventually(t, "the server reads its settings", func() bool { return sql(t, e, "SHOW fsync") == "on" })
	check(0, "ok      timeouts     statement_timeout 30s for this role; coord overrides them")
	sql(t, e, "ALTER ROLE app SET default_transaction_read_only = on") // which coord overrides too
	out = check(0, "ok      durability   synchronous_commit is off for this role; coord sets it to on")
	if !strings.Contains(out, "ok      standbys     none connected") || !strings.Contains(out, "ok      connections  in use: ") {
		t.Errorf("check:\n%s", out)
	}
	sql(t, e, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	if status, out, text := inProcess(t, "", "-backend", "postgres", "-servers", e.URL("latin"), "-wait", "1m", "check"); status != exitNo || !strings.Contains(out, "has the encoding LATIN1: want UTF8") {
		t.Errorf("check of another encoding: %d, %s%s", status, out, text)
	}
	// Superusers may exceed the limit.
	if status, out := ctl("postgres", "check"); status != 0 || !strings.Contains(out, "WARN    connections  in use: ") || !strings.Contains(out, " of 1 of the role") {
		t.Errorf("check of a full role: %d, %s", status, out)
	}

	standby, err := e.Standby(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	servers := standby.Addr() + "," + e.Addr()
	status, text, errs := inProcess(t, "", "-backend", "postgres", "-servers", servers, "-wait", "1m", "check", "--json")
	var got checked
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != 0 || len(got.Servers) != 2 || got.Servers[0].Mode != "standby" || got.Servers[1].Mode != "primary" || got.Clock == nil {
		t.Errorf("check --json: status %d: %s%s", status, text, errs)
	}
	found := false
	for _, f := range got.Postgres {
		found = found || f.What == "standbys" && f.OK && f.Warn && strings.Contains(f.Text, "a lock can have two holders")
	}
	if !found {
		t.Errorf("of the standby: %+v", got.Postgres)
	}
	status, text, errs = inProcess(t, "", "-backend", "postgres", "-servers", standby.Addr(), "-wait", "1m", "check")
	if status != exitNo || !strings.Contains(text, "FAILED  connection   no server that accepts writes") {
		t.Errorf("check of a standby alone: status %d: %s%s", status, text, errs)
	}
}

// Check finds a pooler that swallows notifications.
func TestPostgres_CheckFindsThatNotificationsAreLost(t *testing.T) {
	t.Parallel()
	e := onPostgres(t)
	addr := deaf(t, e.addrs[0])
	status, out, text := inProcess(t, "", "-backend", "postgres", "-servers", addr, "-wait", "1m", "check")
	if status != exitNo || !strings.Contains(out, "FAILED  notify       no notification arrived within 2s, as through a connection pooler") {
		t.Errorf("check: status %d: %s%s", status, out, text)
	}
}

// deaf returns the address of a proxy that drops the notifications of a server.
func deaf(t *testing.T, server string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			conn, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				t.Error(err)
				return
			}
			all.Go(func() {
				_, _ = io.Copy(conn, client)
				conn.Close()
			})
			all.Go(func() {
				defer client.Close()
				head := make([]byte, 5)
				for {
					if _, err := io.ReadFull(conn, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
					if _, err := io.ReadFull(conn, body); err != nil {
						return
					}
					if head[0] == 'A' {
						continue
					}
					if _, err := client.Write(append(head[:5:5], body...)); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return ln.Addr().String()
}

// The password comes from the environment or a file, never from a flag, and is never printed.
func TestPostgres_PasswordsAreNotPrinted(t *testing.T) {
	e := pgtest.Start(t, &pgtest.Options{Settings: withoutSync})
	sql(t, e, postgres.Migration(""), "CREATE ROLE app LOGIN SUPERUSER PASSWORD 's3cret/word'", "CREATE DATABASE d OWNER app")
	hba := filepath.Join(e.DataDir(), "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("app:s3cret/word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("contexts: {c: {backend: postgres, servers: 'postgres://app:s3cret%2Fword@"+e.Addr()+"/postgres'}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(e.Addr())
	for _, tc := range []struct {
		env    string // further variables
		args   string
		status int
		tells  string
	}{
		{"COORD_USER=app:s3cret/word", "-servers " + e.Addr(), 0, "postgres as role app"},
		{"", "-servers " + e.Addr() + " -credentials " + file, 0, "postgres as role app"},
		{"PGUSER=app PGPASSWORD=s3cret/word PGHOST=" + host + " PGPORT=" + port, "", 0, "postgres as role app"},
		{"COORD_SERVERS=postgres://app:s3cret%2Fword@" + e.Addr() + "/postgres", "", 0, "postgres as role app"},
		{"COORD_USER=app:not-s3cret", "-servers " + e.Addr(), exitNo, "password authentication failed"},
		{"COORD_SERVERS=postgres://app:not-s3cret@" + e.Addr() + "/postgres", "", exitNo, "password authentication failed"},
		{"", "-servers postgres://app:s3cret%2Fword@" + e.Addr() + "/postgres", exitUsage, "a connection string with a password"},
		{"", "-servers postgres://app@" + e.Addr() + "/postgres?password=s3cret", exitUsage, "a connection string with a password"},
		{"", "-servers host=127.0.0.1\u00a0password\u00a0=\u00a0s3cret", exitUsage, "a connection string with a password"},
		{"COORDCTL_CONFIG=" + config, "-context c", exitUsage, "a connection string with a password"},
		{"COORD_SERVERS=postgres://app:s3cret/word@" + e.Addr() + "/postgres", "", exitUsage, "the connection string is invalid"},
		{"COORD_SERVERS=password='s3cret\u00a0host=x", "", exitUsage, "the connection string is invalid"},
		{"", "-servers postgres://127.0.0.1:nonsense/", exitUsage, "nonsense"},
	} {
		t.Run("", func(t *testing.T) {
			t.Setenv("COORD_SERVERS", "")
			for _, v := range strings.Fields(strings.ReplaceAll(tc.env, "\u00a0", "\x00")) {
				name, value, _ := strings.Cut(strings.ReplaceAll(v, "\x00", " "), "=")
				t.Setenv(name, value)
			}
			args := []string{"-backend", "postgres", "-wait", "1m", "-v"}
			for _, a := range strings.Fields(strings.ReplaceAll(tc.args, "\u00a0", "\x00")) {
				args = append(args, strings.ReplaceAll(a, "\x00", " "))
			}
			status, out, text := inProcess(t, "", append(args, "check")...)
			if status != tc.status || !strings.Contains(out+text, tc.tells) || strings.Contains(out+text, "s3cret") {
				t.Errorf("%s %s: status %d, want %d with %q\n%s%s", tc.env, tc.args, status, tc.status, tc.tells, out, text)
			}
			// The other verbs print no password either.
			status, out, text = inProcess(t, "", append(args, "tree")...)
			if (status == 0) != (tc.status == 0) || strings.Contains(out+text, "s3cret") {
				t.Errorf("tree: status %d\n%s%s", status, out, text)
			}
		})
	}
}

// The flags of TLS verify the server, also where sslmode would not.
func TestPostgres_TLS(t *testing.T) {
	t.Parallel()
	e := pgtest.Start(t, &pgtest.Options{Settings: withoutSync})
	sql(t, e, postgres.Migration(""))
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := os.Stat(e.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		dir, name, kind string
		data            []byte
	}{{dir, "ca.pem", "CERTIFICATE", cert}, {e.DataDir(), "server.crt", "CERTIFICATE", cert}, {e.DataDir(), "server.key", "PRIVATE KEY", private}} {
		path := filepath.Join(f.dir, f.name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.data}), 0o600); err != nil {
			t.Fatal(err)
		}
		is := owner.Sys().(*syscall.Stat_t)
		if err := os.Chown(path, int(is.Uid), int(is.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	sql(t, e, "ALTER SYSTEM SET ssl = on")
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args   []string
		status int
		tells  string
	}{
		{[]string{"-servers", e.Addr(), "-tls-ca", dir + "/ca.pem"}, 0, "ok      session"}, // PGSSLMODE is disable
		{[]string{"-servers", e.Addr() + ",localhost:1", "-tls-ca", dir + "/ca.pem", "tree"}, 0, "/  empty"},
		{[]string{"-servers", e.Addr(), "-tls"}, exitNo, "certificate"},
		{[]string{"-servers", strings.Replace(e.Addr(), "127.0.0.1", "localhost", 1), "-tls-ca", dir + "/ca.pem"}, exitNo, "certificate"},
	} {
		args := append([]string{"-backend", "postgres", "-wait", "1m"}, tc.args...)
		if args[len(args)-1] != "tree" {
			args = append(args, "check")
		}
		status, out, text := inProcess(t, "", args...)
		if status != tc.status || !strings.Contains(out+text, tc.tells) {
			t.Errorf("%q: status %d, want %d with %q\n%s%s", tc.args, status, tc.status, tc.tells, out, text)
		}
	}
}
