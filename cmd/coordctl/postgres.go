package main

import (
	"context"
	"crypto/tls"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// connString returns the connection string for PostgreSQL: --servers as it is, or that of a list of servers.
// The empty string leaves everything to the environment.
func (t *tool) connString() string {
	if t.servers == "" || strings.Contains(t.servers, "://") || strings.Contains(t.servers, "=") {
		return t.servers
	}
	list := strings.FieldsFunc(t.servers, func(r rune) bool { return r == ',' || r == ' ' })
	return "postgres://" + strings.Join(list, ",") + "/"
}

var passwordKey = regexp.MustCompile(`(?i)password\s*=`)

// hasPassword reports whether a connection string has a password, and for some without one too: pgconn
// masks what may be a password in its errors.
func hasPassword(connString string) bool {
	masked := pgconn.NewParseConfigError(connString, "", nil).Error()
	return !strings.Contains(masked, connString) || passwordKey.MatchString(connString)
}

// parsePostgres sets pg.
func (t *tool) parsePostgres() (err error) {
	s := t.connString()
	if !t.private && hasPassword(s) {
		return usage("--servers: a connection string with a password can be read by others: use PGPASSWORD, PGPASSFILE, COORD_USER, --credentials, or put the string into COORD_SERVERS")
	}
	t.pg, err = pgconn.ParseConfig(s)
	switch {
	case err == nil:
		return nil
	case hasPassword(s) || strings.Contains(s, "@"): // the error can quote a part of the password
		return usage("--servers: the connection string is invalid: want postgres://user@host:port/database, or host=… dbname=… user=…; special characters of a password in a URL are written as %%40")
	}
	return usage("--servers: %w", err)
}

// postgresHosts returns the addresses of the servers, each once.
func postgresHosts(pg *pgconn.Config) (hosts []string) {
	for _, f := range postgresAttempts(pg) {
		if a := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, a) {
			hosts = append(hosts, a)
		}
	}
	return hosts
}

// postgresAttempts returns the attempts to connect, in their order: a server can have one with TLS and one without.
func postgresAttempts(pg *pgconn.Config) []*pgconn.FallbackConfig {
	first := &pgconn.FallbackConfig{Host: pg.Host, Port: pg.Port, TLSConfig: pg.TLSConfig}
	return append([]*pgconn.FallbackConfig{first}, pg.Fallbacks...)
}

// setAttempts is the reverse of postgresAttempts.
func setAttempts(pg *pgconn.Config, all []*pgconn.FallbackConfig) {
	pg.Host, pg.Port, pg.TLSConfig, pg.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
}

// overridePostgres makes the credentials and the flags of TLS precede the connection string.
func (t *tool) overridePostgres(pg *pgconn.Config, cfg *tls.Config) {
	if t.user != "" {
		pg.User, pg.Password, _ = strings.Cut(t.user, ":")
	}
	if cfg == nil {
		return
	}
	var all []*pgconn.FallbackConfig
	for _, f := range postgresAttempts(pg) {
		own := &pgconn.FallbackConfig{Host: f.Host, Port: f.Port}
		if !strings.HasPrefix(f.Host, "/") { // not on a Unix socket
			own.TLSConfig = cfg.Clone()
			own.TLSConfig.ServerName = f.Host
			if pg.SSLNegotiation == "direct" {
				own.TLSConfig.NextProtos = []string{"postgresql"}
			}
		}
		// The second attempt at a server would differ only in TLS.
		if !slices.ContainsFunc(all, func(o *pgconn.FallbackConfig) bool { return o.Host == f.Host && o.Port == f.Port }) {
			all = append(all, own)
		}
	}
	setAttempts(pg, all)
}

// identifier returns a name as one of SQL, literal a text.
func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
func literal(text string) string    { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

// dialPostgres connects as a session does, to the server that accepts writes, or to any of the attempts that are
// given. The caller closes the connection by closePostgres.
func (t *tool) dialPostgres(ctx context.Context, attempts []*pgconn.FallbackConfig) (*pgconn.PgConn, error) {
	cfg, err := t.tlsConfig()
	if err != nil {
		return nil, err
	}
	pg := t.pg.Copy()
	if attempts != nil {
		setAttempts(pg, attempts)
	}
	t.overridePostgres(pg, cfg)
	if pg.RuntimeParams["application_name"] == "" {
		pg.RuntimeParams["application_name"] = "coordctl"
	}
	switch {
	case attempts != nil:
		pg.ValidateConnect = nil
	case pg.ValidateConnect == nil:
		pg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary // a session overrides default_transaction_read_only
	}
	return pgconn.ConnectConfig(ctx, pg)
}

// closePostgres closes a connection, also if it is broken.
func closePostgres(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
