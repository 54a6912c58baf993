package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// pgServer is a PostgreSQL server that waits for the disk, with the settings of a new installation but
// for the number of connections.
type pgServer struct {
	*pgtest.Server
	version string
	counted countedConns
	outposts
}

// startPostgres starts a server with a table for the raw client, and a database for river.
func startPostgres(ctx context.Context) (_ *pgServer, err error) {
	if _, err := pgtest.Find(); err != nil {
		return nil, fmt.Errorf("%w: %v", errNotInstalled, err)
	}
	s, err := pgtest.New(ctx, &pgtest.Options{Settings: map[string]string{"max_connections": "200"}})
	if err != nil {
		return nil, err
	}
	x := &pgServer{Server: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Close())
		}
	}()
	if x.version, err = x.Exec(ctx, "", "SHOW server_version"); err != nil {
		return nil, err
	}
	// A row that is updated often has room in its page, as those of the backend have.
	if _, err = x.Exec(ctx, "", "CREATE TABLE cell (id text PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 10)"); err != nil {
		return nil, err
	}
	// A database of its own, since a notification wakes all listening connections of a database.
	if _, err = x.Exec(ctx, "", "CREATE DATABASE "+riverDatabase); err != nil {
		return nil, err
	}
	return x, nil
}

func (x *pgServer) Close() error {
	x.outposts.close()
	return x.Server.Close()
}

// metered returns a context with which the cells count the processor time of the server's processes.
func (x *pgServer) metered(ctx context.Context) context.Context {
	requests := func(context.Context) (float64, bool) { return 0, false }
	return context.WithValue(ctx, meterKey{}, &meter{requests: requests, processors: x.processors})
}

// processors returns the processor time so far of the postmaster and its children, with that of the
// children which have ended.
func (x *pgServer) processors() (sum time.Duration, known bool) {
	postmaster := x.Pid()
	pids := []int{postmaster}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", postmaster)) // the pattern is valid
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				return 0, false
			}
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		if t, ok := processorTimeOf(pid); ok {
			sum += t
		} else if pid == postmaster {
			return 0, false
		}
	}
	return sum, true
}

// url returns the connection string for clients at a place, with the delay of that place.
func (x *pgServer) url(p *place) (string, error) {
	addrs, err := x.at(p, []string{x.Addr()})
	if err != nil {
		return "", err
	}
	return pgtest.URL(addrs[0], ""), nil
}

// coord is this library on the server.
func (x *pgServer) coord() *contestant { return x.contestant(byCoord, postgres.Options{}) }

// early is this library with EarlyRelease, in a schema of its own.
func (x *pgServer) early() *contestant {
	return x.contestant(byEarly, postgres.Options{EarlyRelease: true, Schema: "early"})
}

func (x *pgServer) contestant(who string, o postgres.Options) *contestant {
	return &contestant{who: who, where: onPostgres, dial: func(ctx context.Context, p *place, _ int, timeout time.Duration) (connection, error) {
		url, err := x.url(p)
		if err != nil {
			return nil, err
		}
		o := o
		o.SessionTimeout = timeout
		if p.oneWay == countedOneWay {
			o.BeforeConnect = func(_ context.Context, c *pgconn.Config) error {
				c.AfterNetConnect = x.counted.wrap(p)
				return nil
			}
		}
		c, err := coord.Open(ctx, postgres.New(url, &o), &coord.Options{Namespace: p.root})
		if err != nil {
			return nil, err
		}
		return &coordConn{c: c, root: p.root}, nil
	}}
}

// advisory is the advisory locks of the server, by pgx.
func (x *pgServer) advisory() *contestant {
	return &contestant{who: byAdvisory, where: onPostgres, dial: func(_ context.Context, p *place, _ int, _ time.Duration) (connection, error) {
		url, err := x.url(p)
		if err != nil {
			return nil, err
		}
		return &pgConn{url: url, conns: make(map[int]*pgx.Conn)}, nil
	}}
}

// pgConn is a client of pgx. It has a connection for every caller, since a connection makes one
// request at a time, and owns advisory locks as a whole.
type pgConn struct {
	url string

	mu    sync.Mutex
	conns map[int]*pgx.Conn
}

// conn returns the connection of a caller.
func (x *pgConn) conn(ctx context.Context, caller int) (*pgx.Conn, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.conns[caller]; c != nil && !c.IsClosed() { // pgx closes it when the context of a request ends
		return c, nil
	}
	c, err := pgx.Connect(ctx, x.url)
	if err != nil {
		return nil, err
	}
	x.conns[caller] = c
	return c, nil
}

func (x *pgConn) locker(ctx context.Context, path string, caller int) (locker, error) {
	c, err := x.conn(ctx, caller)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (func() error, error) {
		if _, err := c.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", path); err != nil {
			return nil, err
		}
		return func() error {
			var held bool
			err := c.QueryRow(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", path).Scan(&held)
			if err == nil && !held {
				err = fmt.Errorf("the advisory lock of %s was not held", path)
			}
			return err
		}, nil
	}, nil
}

func (x *pgConn) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	for _, c := range x.conns {
		err = errors.Join(err, c.Close(ctx))
	}
	return err
}
