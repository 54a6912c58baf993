package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/internal/zktest"
)

// limit protects from a test that hangs.
const limit = 3 * time.Minute

// A program is a process of the example. It is started again whenever it ends.
type program struct {
	t    *testing.T
	args []string

	mu     sync.Mutex
	over   bool
	cmd    *exec.Cmd
	exited <-chan struct{}
	log    lines
	kills  int
}

// lines keeps the end of the output of a program.
type lines struct {
	mu  sync.Mutex
	end []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, b...)
	l.end = l.end[max(0, len(l.end)-4000):]
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.end)
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{t: t, args: append([]string{"outbox"}, args...)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.launch()
	t.Cleanup(func() {
		p.mu.Lock()
		p.over = true
		p.mu.Unlock()
		p.kill()
		if t.Failed() {
			t.Logf("the end of the log of %v:\n%s", args[2:], p.log.String())
		}
	})
	return p
}

// launch starts the process. It needs the mutex.
func (p *program) launch() {
	self, err := os.Executable()
	if err != nil {
		p.t.Error(err)
		return
	}
	p.cmd = exec.Command(self, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if p.exited, err = proc.Launch(p.cmd, nil); err != nil {
		p.t.Error(err)
	}
}

// kill kills the process (SIGKILL), and starts another one unless the test is over.
func (p *program) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it can have ended
	<-p.exited
	p.kills++
	if !p.over {
		p.launch()
	}
}

// alive starts a process that has ended by itself: its connection was ended while it started.
func (p *program) alive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		p.launch()
	default:
	}
}

// Both programs are killed, and so are their connections, while customers book. Each customer asks again until there is an
// answer. In the end each booking is charged once.
func TestEachBookingIsChargedOnce(t *testing.T) {
	bookings, every := 60, 6 // bookings between two strikes
	if os.Getenv("COORD_LONG") != "" {
		bookings, every = 10_000, 25
	}
	server := pgtest.Start(t, nil)
	ports, err := zktest.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", ports[0])
	programs := []*program{
		start(t, "-db", server.URL(""), "-session", "3s", "-serve", address),
		start(t, "-db", server.URL(""), "-session", "3s", "-work"),
		start(t, "-db", server.URL(""), "-session", "3s", "-work"),
	}
	conn, err := pgx.Connect(t.Context(), server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())

	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Duration(bookings)*300*time.Millisecond)
	defer cancel()
	var next, booked, asked atomic.Int64
	var customers sync.WaitGroup
	strike := make(chan struct{}, bookings)
	for range 4 {
		customers.Go(func() {
			for {
				id := next.Add(1)
				if id > int64(bookings) {
					return
				}
				for !book(ctx, address, id) {
					asked.Add(1)
					if ctx.Err() != nil {
						t.Errorf("booking %d has no answer", id)
						return
					}
				}
				if booked.Add(1)%int64(every) == 0 {
					strike <- struct{}{}
				}
			}
		})
	}
	all := make(chan struct{})
	go func() {
		defer close(all)
		customers.Wait()
	}()
	ended := 0
	for done := false; !done; {
		select {
		case <-strike:
			switch n := rand.IntN(len(programs) + 1); n {
			case len(programs):
				// Sessions of the library, and transactions in the middle.
				tag, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.7")
				if err != nil {
					t.Fatal(err)
				}
				ended += int(tag.RowsAffected())
			default:
				programs[n].kill()
			}
		case <-time.After(100 * time.Millisecond):
			for _, p := range programs {
				p.alive()
			}
		case <-all:
			done = true
		}
	}
	if t.Failed() {
		return
	}

	// The jobs of the workers that were killed last wait for the end of their sessions.
	var charged, items int
	for charged < bookings || items > 0 {
		for _, p := range programs {
			p.alive()
		}
		err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM ledger), (SELECT count(*) FROM coord.node WHERE path LIKE '/shop/charges/items/%/i-%')`).Scan(&charged, &items)
		if err != nil {
			t.Fatalf("%d of %d bookings are charged, and %d jobs are left: %v", charged, bookings, items, err)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	rows, _ := conn.Query(ctx, `SELECT format('booking %s: %s charges', coalesce(b.id, l.booking), count(l.booking))
		FROM booking b FULL JOIN ledger l ON l.booking = b.id AND l.card = b.card AND l.cents = b.cents
		GROUP BY b.id, l.booking HAVING count(b.id) <> 1 OR count(l.booking) <> 1`)
	wrong, err := pgx.CollectRows(rows, pgx.RowTo[string]) // or the error of the query
	if err != nil || len(wrong) > 0 {
		t.Errorf("%d of %d bookings are wrong: %s, %v", len(wrong), bookings, strings.Join(wrong[:min(len(wrong), 10)], ", "), err)
	}
	var n int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM booking").Scan(&n); err != nil || n != bookings {
		t.Errorf("%d bookings, %v, want %d", n, err, bookings)
	}
	kills := 0
	for _, p := range programs {
		p.mu.Lock()
		kills += p.kills
		p.mu.Unlock()
	}
	if kills+ended == 0 {
		t.Error("nothing was killed")
	}
	if t.Failed() {
		return
	}
	t.Logf("figure: %d bookings, each charged once; %d processes and %d connections killed, %d requests asked again", bookings, kills, ended, asked.Load())
}

// book asks for a booking. It reports whether the answer says that it is booked.
func book(ctx context.Context, address string, id int64) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "PUT", fmt.Sprintf("http://%s/bookings/b-%d", address, id), strings.NewReader(fmt.Sprintf(`{"Card": "c-%d", "Cents": %d}`, id%7, id)))
	if err != nil {
		return false
	}
	r.Close = true // no connection is kept
	answer, err := http.DefaultClient.Do(r)
	if err != nil { // the server is down
		time.Sleep(20 * time.Millisecond) // nothing signals its start
		return false
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusNoContent
}
