package postgres_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/fakeclock"
)

// sharedSchema is the schema of the tests of the root module.
const sharedSchema = "elsewhere"

// Ensembles are servers for the tests of the root module. COORD_POSTGRES_SERVER is the address of a server that the tests
// share.
var Ensembles = &ensemble.Service{
	Backend: func(servers []string, timeout, margin time.Duration, without backend.Features) backend.Backend {
		return postgres.New(urlOf(servers), &postgres.Options{
			SessionTimeout: timeout, LossMargin: margin, Schema: sharedSchema, Without: without, ContainerInterval: 200 * time.Millisecond,
		})
	},
	One:  func(*testing.T) string { return os.Getenv("COORD_POSTGRES_SERVER") },
	Line: func(server string) (ensemble.Line, error) { return newLine(server, nil) },
	Expire: func(ctx context.Context, server string, session int64) error {
		conn, err := pgx.Connect(ctx, pgtest.URL(server, ""))
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		_, err = conn.Exec(ctx, fmt.Sprintf("SELECT %s.finish($1)", sharedSchema), session)
		return err
	},
}

// stepClock sets the clock of a server ahead of the real time, and fails unless the server then shows that time.
func stepClock(ctx context.Context, s *pgtest.Server, clocks *fakeclock.Clocks, id int, ahead time.Duration) error {
	if err := clocks.Step(id, ahead); err != nil {
		return err
	}
	before := time.Now()
	out, err := s.Exec(ctx, "", "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
	if err != nil {
		return err
	}
	micros, err := strconv.ParseInt(out, 10, 64)
	if err != nil {
		return err
	}
	shown := time.UnixMicro(micros)
	if shown.Before(before.Add(ahead-time.Second)) || shown.After(time.Now().Add(ahead+time.Second)) {
		return fmt.Errorf("the clock of the server shows %v, want %v ahead of %v", shown, ahead, before)
	}
	return nil
}

// urlOf returns the connection string for a primary and its standbys.
func urlOf(servers []string) string {
	var hosts, ports []string
	for _, addr := range servers {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "" // which Open refuses
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	return fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres sslmode=disable", strings.Join(hosts, ","), strings.Join(ports, ","))
}
