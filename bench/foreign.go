package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/proc"
)

// A foreign is a peer in another language, in a process of its own. The process executes one
// command at a time, which it reads from its standard input, and answers with one line: ok
// and figures, or failed and the reason. SERVERS are comma-separated addresses; client i of a
// command is connected to the i-th. Times are in nanoseconds; PERCENTILES are p50, p90, p99
// and the maximum.
//
//	cycles SERVERS PATH CALLERS MILLIS             N TOOK PERCENTILES
//	contend SERVERS PATH CALLERS one|each MILLIS   TURNS TOOK PERCENTILES of hand-overs
//	trips SERVERS PATH N                           N cycles of one caller
//	share SERVERS PATH LOCKS EVERY MILLIS          N TOOK PERCENTILES of the cycles of a mix
//	together SERVERS PATH LOCKS MILLIS             N TOOK PERCENTILES of cycles of several locks: at least one cycle
//	hold SERVERS PATH MILLIS                       a client with that session timeout, which holds the lock
//	heir SERVERS PATH MILLIS                       another, which waits for it
//	granted                                        when the heir has the lock
//	drop                                           ends both
//	queue KIND SERVERS PATH CONSUMERS BATCH SIZE   a queue, each of whose consumers has a client and has had a turn
//	turns MILLIS                                   N TOOK PERCENTILES of turns: a consumer puts a batch, and takes as many
//	                                               items; fails unless each item was taken once
//	fill KIND SERVERS PATH CONSUMERS PRODUCERS ITEMS SIZE   a queue; it has the items, unless there are producers
//	drain                                          N TOOK: the consumers take the items, and each producer puts its next item
//	                                               when its latest one was taken; fails unless each item was taken once
//	unqueue                                        ends that queue's consumers
//	barrier SERVERS PATH MEMBERS ROUNDS            TOOK
//	divide SERVERS PATH SHARDS MEMBERS MILLIS      prepares members that divide shards, and that wait for others for a time
//	start LIMIT                                    TOOK MOVES of all members but one; nothing beyond LIMIT milliseconds
//	join LIMIT                                     TOOK MOVES of the last one
//	leave LIMIT                                    TOOK MOVES as it leaves
//	undivide                                       ends the members
//	cache SERVERS PATH KIND                        TOOK NODES of a cache that has the subtree, and stays until uncache
//	heap                                           BYTES in use after a collection, if the process can tell
//	seen N                                         when that cache has seen N changes of data
//	uncache                                        ends the cache and its session
//
// The end of standard input ends the process.
type foreign struct {
	name string

	mu     sync.Mutex // one command at a time
	cmd    *exec.Cmd
	exited <-chan struct{}
	stdin  io.WriteCloser
	lines  chan string // its answers
	errs   tail        // its standard error
}

// startForeign starts a peer and waits for its ok.
func startForeign(ctx context.Context, name string, cmd *exec.Cmd) (*foreign, error) {
	f := &foreign{name: name, cmd: cmd, lines: make(chan string, 16)}
	var err error
	if f.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	said, out := io.Pipe()
	cmd.Stdout, cmd.Stderr = out, &f.errs
	if f.exited, err = proc.Launch(cmd, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		<-f.exited
		out.Close()
	}()
	go func() {
		defer close(f.lines)
		for in := bufio.NewScanner(said); in.Scan(); {
			f.lines <- in.Text()
		}
	}()
	if _, err := f.answer(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close kills the process and waits for its end.
func (f *foreign) Close() error {
	_ = f.cmd.Process.Kill() // it may have ended by itself
	for range f.lines {
	}
	<-f.exited
	return nil
}

// ask makes the peer execute a command, and returns its figures.
func (f *foreign) ask(ctx context.Context, words ...any) ([]float64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := fmt.Fprintln(f.stdin, words...); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", f.name, err, f.errs.String())
	}
	return f.answer(ctx)
}

func (f *foreign) answer(ctx context.Context) ([]float64, error) {
	select {
	case line, ok := <-f.lines:
		if !ok {
			return nil, fmt.Errorf("%s has ended: %s", f.name, f.errs.String())
		}
		return parseAnswer(f.name, line)
	case <-ctx.Done():
		// A late answer could be mistaken for the answer to the next command.
		_ = f.cmd.Process.Kill()
		return nil, fmt.Errorf("%s did not answer: %w", f.name, context.Cause(ctx))
	}
}

// parseAnswer parses the answer of a peer.
func parseAnswer(name, line string) ([]float64, error) {
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "ok" {
		return nil, fmt.Errorf("%s: %s", name, line)
	}
	figures := make([]float64, len(words)-1)
	for i, w := range words[1:] {
		v, err := strconv.ParseFloat(w, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, line, err)
		}
		figures[i] = v
	}
	return figures, nil
}

// hammered converts a peer's figures about a number of operations to a sample.
func (f *foreign) hammered(figures []float64, err error) (sample, error) {
	if err != nil {
		return nil, err
	}
	if len(figures) != 6 {
		return nil, fmt.Errorf("%s: %d figures, want 6", f.name, len(figures))
	}
	const micro = float64(time.Microsecond)
	return sample{
		mDone: figures[0],
		mRate: figures[0] / (figures[1] / float64(time.Second)),
		mP50:  figures[2] / micro,
		mP90:  figures[3] / micro,
		mP99:  figures[4] / micro,
		mMax:  figures[5] / micro,
	}, nil
}

func (f *foreign) who() string   { return f.name }
func (f *foreign) where() string { return onZooKeeper }

func servers(p *place) string { return strings.Join(p.addrs, ",") }

func (f *foreign) cycles(ctx context.Context, p *place, path string, callers int, span time.Duration) (sample, error) {
	return f.hammered(f.ask(ctx, "cycles", servers(p), path, callers, span.Milliseconds()))
}

func (f *foreign) contend(ctx context.Context, p *place, path string, callers int, oneClient bool, span time.Duration) (sample, error) {
	which := "each"
	if oneClient {
		which = "one"
	}
	return f.hammered(f.ask(ctx, "contend", servers(p), path, callers, which, span.Milliseconds()))
}

func (f *foreign) trips(ctx context.Context, p *place, path string, cycles int) (sample, error) {
	return f.count(ctx, p, cycles, func(n int) error { _, err := f.ask(ctx, "trips", servers(p), path, n); return err })
}

// count counts the cost of cycles at a place, of which run makes n. A first cycle makes the
// directories and does not count.
func (f *foreign) count(ctx context.Context, p *place, cycles int, run func(n int) error) (sample, error) {
	if err := run(1); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	p.tally.reset()
	if err := run(cycles); err != nil {
		return nil, err
	}
	trips := p.tally.trips() / float64(cycles)
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	s := p.tally.get().per(cycles)
	s[mTrips] = trips
	return s, nil
}

func (f *foreign) failover(ctx context.Context, holder, heir *place, path string, timeout time.Duration, cut func()) (_ time.Duration, err error) {
	defer func() {
		if _, derr := f.ask(ctx, "drop"); err == nil {
			err = derr
		}
	}()
	if _, err := f.ask(ctx, "hold", servers(holder), path, timeout.Milliseconds()); err != nil {
		return 0, err
	}
	if _, err := f.ask(ctx, "heir", servers(heir), path, timeout.Milliseconds()); err != nil {
		return 0, err
	}
	began := time.Now()
	cut()
	_, err = f.ask(ctx, "granted")
	return time.Since(began), err
}

// A tail keeps the end of the output written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-most):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
