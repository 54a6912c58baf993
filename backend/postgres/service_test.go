package postgres_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/costtest"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
)

// service is a schema of its own on a server. The schema stays until the server is removed.
type service struct {
	again  bool // another test can use the schema after this one
	tb     testing.TB
	server string // its address
	pool   string // the address of a pool that the links lead to; "" for none
	opts   postgres.Options

	trips *costtest.Trips // of the links that are made later, or nil

	mu    sync.Mutex
	links map[string]*link
}

var schemas atomic.Int64

// newService returns a service in a schema that no other test, and no other run of this one, uses.
func newService(tb testing.TB, server string, opts postgres.Options) *service {
	tb.Helper()
	if opts.ContainerInterval == 0 {
		opts.ContainerInterval = -1 // so that nothing but the test deletes nodes
	}
	opts.Schema = fmt.Sprintf("t%d_%d", time.Now().UnixNano(), schemas.Add(1))
	s := &service{tb: tb, server: server, opts: opts, links: make(map[string]*link)}
	tb.Cleanup(s.close)
	return s
}

// emptied are schemas of tests that have ended.
type emptied struct {
	mu      sync.Mutex
	schemas map[string][]string // by server
}

var used = emptied{schemas: make(map[string][]string)}

// newService returns a service whose schema can have been that of an earlier test, with positions above 0. Each schema slows
// down all connections of its database, whose functions have the same names.
func (e *emptied) newService(tb testing.TB, server string, opts postgres.Options) *service {
	tb.Helper()
	s := newService(tb, server, opts)
	s.again = true
	e.mu.Lock()
	defer e.mu.Unlock()
	if free := e.schemas[server]; len(free) > 0 {
		s.opts.Schema = free[len(free)-1]
		e.schemas[server] = free[:len(free)-1]
	}
	return s
}

// add empties the schema of a service whose links are closed. It first ends the processes of the server that use the schema.
func (e *emptied) add(s *service) {
	err := s.exec(strings.ReplaceAll(`DO $$ BEGIN
		PERFORM pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = '{s}';
		IF to_regclass('{s}.node') IS NULL THEN
			RETURN;
		END IF;
		DELETE FROM {s}.session;
		DELETE FROM {s}.change;
		DELETE FROM {s}.node WHERE path <> '/';
		UPDATE {s}.node SET data = NULL, mzxid = 0, pzxid = 0, mtime = 0, version = 0, children = 0, created = 0;
		UPDATE {s}.clock SET polled = false;
	END $$`, "{s}", s.opts.Schema))
	if err != nil {
		s.tb.Errorf("empty the schema: %v", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.schemas[s.server] = append(e.schemas[s.server], s.opts.Schema)
}

func (s *service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		l.close()
	}
	if s.again && !s.tb.Failed() {
		used.add(s)
	}
}

func (s *service) Root() string { return "/" }

func (s *service) Link(name string) backendtest.Link { return s.link(name) }

func (s *service) link(name string) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.links[name]; l != nil {
		return l
	}
	l, err := newLink(s)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.links[name] = l
	return l
}

// exec runs SQL on the server, through no link.
func (s *service) exec(sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, pgtest.URL(s.server, ""))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql, args...)
	if err != nil {
		conn.Close(ctx)
		return err
	}
	return conn.Close(ctx)
}

// link is a connection to the server through a line.
type link struct {
	backend.Backend
	service *service
	line    *line

	mu    sync.Mutex
	fault ensemble.Fault // the latest of DropNextRequest and DropNextReply, or nil
}

func newLink(s *service) (*link, error) {
	line, err := newLine(cmp.Or(s.pool, s.server), s.trips)
	if err != nil {
		return nil, err
	}
	return &link{Backend: postgres.New(pgtest.URL(line.Addr(), "")+"&application_name="+s.opts.Schema, &s.opts), service: s, line: line}, nil
}

// close ends all connections, and waits for their goroutines.
func (l *link) close() {
	if err := l.line.Close(); err != nil {
		l.service.tb.Error(err)
	}
}

func (l *link) Partition() {
	l.line.Refuse(true)
	l.line.Cut()
}

func (l *link) Heal() {
	l.line.Refuse(false)
	l.line.Blackhole(false)
}

func (l *link) SetLatency(d time.Duration) { l.line.SetDelay(d, d) }
func (l *link) DropNextRequest()           { l.dropNext(zkproxy.DropRequest) }
func (l *link) DropNextReply()             { l.dropNext(zkproxy.DropReply) }

// dropNext replaces a fault that has not happened.
func (l *link) dropNext(what zkproxy.DropWhat) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		l.fault.Cancel()
	}
	l.fault = l.line.Drop(func(f zkproxy.Frame) bool {
		switch f.Opcode {
		case zkproxy.OpConnect, zkproxy.OpPing, zkproxy.OpClose, zkproxy.OpAuth:
			return false
		}
		return true
	}, what)
}

func (l *link) Expire(session int64) {
	if err := l.service.exec(fmt.Sprintf("SELECT %s.finish($1)", l.service.opts.Schema), session); err != nil {
		l.service.tb.Errorf("expire session %#x: %v", session, err)
	}
}
