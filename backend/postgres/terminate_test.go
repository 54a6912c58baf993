//go:build linux

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// load makes commits in several goroutines of several sessions, each of a node with a new name.
type load struct {
	sessions []backend.Session
	stop     chan struct{}
	work     sync.WaitGroup
	count    atomic.Int64 // of answered commits

	mu        sync.Mutex
	answered  map[string]int64 // the positions of the nodes
	uncertain int
}

func startLoad(t *testing.T, b backend.Backend, sessions int) *load {
	t.Helper()
	l := &load{stop: make(chan struct{}), answered: make(map[string]int64)}
	for i := range sessions {
		s := opened(t, b)
		l.sessions = append(l.sessions, s)
		for k := range 3 {
			l.work.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-l.stop:
						return
					default:
					}
					path := fmt.Sprintf("/load-%d-%d-%d", i, k, n)
					r, err := s.Commit(t.Context(), backend.Create(path, nil, backend.Persistent))
					l.mu.Lock()
					switch {
					case err == nil:
						l.answered[path] = r[0].Czxid
						l.count.Add(1)
					case errors.Is(err, backend.ErrUncertain):
						l.uncertain++
					default: // a commit that is repeated although it was applied is ErrExists
						t.Errorf("%s: %v", path, err)
					}
					l.mu.Unlock()
					if err != nil && s.Err() != nil {
						return
					}
				}
			})
		}
	}
	return l
}

// more waits until n more commits are answered.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	want := l.count.Load() + n
	deadline := time.Now().Add(time.Minute)
	for l.count.Load() < want {
		if time.Now().After(deadline) {
			t.Fatalf("%d commits were answered, want %d", l.count.Load(), want)
		}
		time.Sleep(5 * time.Millisecond) // nothing signals it
	}
}

// end ends the load, and checks that no session was lost and that each answered commit is there.
func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	l.work.Wait()
	for _, s := range l.sessions {
		if err := s.Err(); err != nil {
			t.Errorf("a session: %v", err)
		}
	}
	s := l.sessions[0]
	if err := s.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	for path, z := range l.answered {
		if st, err := s.Exists(t.Context(), path, nil); err != nil || st.Czxid != z {
			t.Errorf("%s was created at %d: %d, %v", path, z, st.Czxid, err)
		}
	}
	t.Logf("figure: %d commits answered, %d uncertain", len(l.answered), l.uncertain)
}

func (s *service) backends(t *testing.T) (pids []int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.URL(s.server, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	rows, err := conn.Query(t.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = $1", s.opts.Schema)
	if err != nil {
		t.Fatal(err)
	}
	pids, err = pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

// checkpointer returns the process of that name, as soon as the server answers. The server starts another one after a crash.
func (s *service) checkpointer(t *testing.T) (pid int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := pgx.Connect(t.Context(), pgtest.URL(s.server, ""))
		if err == nil {
			err = conn.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'").Scan(&pid)
			conn.Close(context.WithoutCancel(t.Context()))
		}
		if err == nil {
			return pid
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // nothing signals it
	}
}

// named is the service's Backend without a proxy. The application_name of its connections is the schema.
func (s *service) named() backend.Backend {
	return postgres.New(pgtest.URL(s.server, "")+"&application_name="+s.opts.Schema, &s.opts)
}

// An administrator cancels commits, and then ends connections. A canceled commit is repeated and applied once. A commit
// whose connection ends is uncertain. No session is lost.
func TestTerminate_CommitsAndConnections(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: time.Minute})
	l := startLoad(t, s.named(), 3)
	l.more(t, 20)
	for _, f := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		for range 10 {
			if err := s.exec("SELECT "+f+"(pid) FROM pg_stat_activity WHERE application_name = $1", s.opts.Schema); err != nil {
				t.Fatal(err)
			}
			l.more(t, 5)
		}
		l.mu.Lock()
		uncertain := l.uncertain
		l.mu.Unlock()
		if f == "pg_cancel_backend" && uncertain > 0 {
			t.Errorf("%d canceled commits are uncertain", uncertain)
		}
	}
	l.end(t)
}

// One process of the server is killed, and the server ends all connections and recovers without a new postmaster.
// No answered commit and no session is lost, and the positions have a new epoch.
func TestTerminate_AKilledProcess(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off", "restart_after_crash": "on"}})
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute})
	l := startLoad(t, s.named(), 3)
	epoch := create(t, l.sessions[0], "/first", backend.Persistent) >> 40
	for round := range 2 {
		l.more(t, 20)
		process := s.checkpointer(t)
		if err := syscall.Kill(s.backends(t)[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for s.checkpointer(t) == process { // until then the other processes answer commits
			time.Sleep(5 * time.Millisecond) // nothing signals it
		}
		l.more(t, 20)
		if z := create(t, l.sessions[0], fmt.Sprint("/after-", round), backend.Persistent); z>>40 != epoch+int64(round)+1 {
			t.Errorf("position %#x after crash %d", z, round+1)
		}
	}
	l.end(t)
}

// A process of the server that has the turn is stopped for longer than a lease. The others keep their sessions, since
// a keep-alive takes no turn, and their commits wait.
func TestTerminate_AStoppedProcessWithTheTurn(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 6 * time.Second})
	a, b := opened(t, s.named()), opened(t, s.named())
	conn, err := pgx.Connect(t.Context(), pgtest.URL(s.server, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT "+s.opts.Schema+".take_turn()"); err != nil {
		t.Fatal(err)
	}
	pid := int(conn.PgConn().PID())
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	defer resume()
	done := make(chan error, 2)
	for i, s := range []backend.Session{a, b} {
		go func() {
			_, err := s.Commit(t.Context(), backend.Create(fmt.Sprint("/n", i), nil, backend.Persistent))
			done <- err
		}()
	}
	select {
	case err := <-done:
		t.Fatalf("a commit without the turn: %v", err)
	case <-time.After(8 * time.Second): // the promise is a time
	}
	for _, s := range []backend.Session{a, b} {
		if phase, _ := s.Status(); phase != backend.PhaseConnected || s.Err() != nil {
			t.Errorf("a session: %v, %v", phase, s.Err())
		}
		if _, err := s.Exists(t.Context(), "/", nil); err != nil {
			t.Error(err)
		}
	}
	resume()
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// The whole server is paused. If that takes less than the lease, no session is lost. Otherwise the client learns of its loss
// before the server answers again.
func TestTerminate_AStoppedServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, &pgtest.Options{Settings: map[string]string{"fsync": "off"}})
	short := opened(t, newService(t, server.Addr(), postgres.Options{SessionTimeout: 3 * time.Second}).named())
	long := opened(t, newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute}).named())
	create(t, long, "/held", backend.Ephemeral)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ends(t, short)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := long.Exists(t.Context(), "/held", nil); err != nil {
		t.Error(err)
	}
	create(t, long, "/more", backend.Ephemeral)
}

// A server crashes under load again and again. No answered commit is lost, and since it comes back within the lease no session is.
func TestRestart_CrashesUnderLoad(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, nil)
	s := newService(t, server.Addr(), postgres.Options{SessionTimeout: time.Minute})
	l := startLoad(t, s.named(), 3)
	create(t, l.sessions[0], "/held", backend.Ephemeral)
	crashes := 2
	if os.Getenv("COORD_LONG") != "" {
		crashes = 5
	}
	last := int64(0)
	for round := range crashes {
		l.more(t, 30)
		if round%2 == 0 {
			if err := server.StopNow(); err != nil {
				t.Fatal(err)
			}
		} else {
			server.Kill()
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		z := create(t, l.sessions[1], fmt.Sprint("/after-", round), backend.Persistent)
		if z>>40 <= last>>40 {
			t.Errorf("position %#x after a crash, %#x before", z, last)
		}
		last = z
	}
	if st, err := l.sessions[1].Exists(t.Context(), "/held", nil); err != nil || st.EphemeralOwner != l.sessions[0].ID() {
		t.Errorf("the node of a session that lives: %v", err)
	}
	l.end(t)
}
