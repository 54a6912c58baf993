//go:build linux

package faulttest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/trace"
)

// workerRole is the role of a worker: a process that acquires a lock on command.
const workerRole = "worker"

// workerSpec is its task.
type workerSpec struct {
	Servers        []string
	SessionTimeout time.Duration
	LossMargin     time.Duration // zero: the default
	Lock           string        // path
	Keep           time.Duration // MutexOptions.Keep
	Election       string        // path
	ID             string        // of the candidate
	Resource       string        // socket
	Skew           time.Duration // by how much its clocks are wrong
}

// A line is a report of a worker, with the time of the shared clock. A worker reports a step
// before it takes it.
//
//	opened               the client has its first session
//	want, waiting, granted
//	done                 Done of the hold is closed, with the reason
//	releasing, released  with the error or "ok"
//	writing, wrote       to the resource, with its answer, whatever Done and Err report
//	checked              "stands", or the reason, by Done and Err
//	verified             "ok" or the error, by the service
//	phase                of the session
//	requeued             the place in the queue was lost
//	failed               the worker gives up
//
// For elections see candidacy, for queues queueing and obeyFleet, for transactions obeyCommit,
// for small programs obeyProgram, for schedules obeySchedule.
type line struct {
	At      time.Duration
	Kind    string
	Token   int64  `json:",omitempty"`
	Path    string `json:",omitempty"` // of the node
	Session int64  `json:",omitempty"`
	Text    string `json:",omitempty"`

	Items   []queued      `json:",omitempty"` // of a queue
	Attempt int           `json:",omitempty"`
	Delay   time.Duration `json:",omitempty"`
	Zxid    int64         `json:",omitempty"`
}

func (l line) String() string {
	return fmt.Sprintf("%v %s %#x %s %s", l.At, l.Kind, l.Token, l.Path, l.Text)
}

// worker is the state of a worker process.
type worker struct {
	spec workerSpec
	c    *coord.Client
	m    *coord.Mutex

	// The connection to the resource. Only the commands use it, one at a time.
	conn    net.Conn
	answers *bufio.Reader

	mu   sync.Mutex
	hold *coord.Hold // the latest
	out  proc.Output

	proceed   chan struct{} // of a schedule
	candidacy candidacy
	queueing  queueing
}

func workerMain(spec []byte) (code int) {
	w := &worker{}
	if err := w.run(spec); err != nil {
		w.say(line{Kind: "failed", Text: err.Error()})
		return 1
	}
	return 0
}

// run opens the client and obeys the commands on standard input until its end.
func (w *worker) run(spec []byte) error {
	if err := json.Unmarshal(spec, &w.spec); err != nil {
		return err
	}
	conn, err := net.Dial("unix", w.spec.Resource)
	if err != nil {
		return err
	}
	defer conn.Close()
	w.conn, w.answers = conn, bufio.NewReader(conn)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opening, opened := context.WithTimeout(ctx, limit)
	defer opened()
	w.c, err = coord.Open(hook.With(opening, hook.Hooks{Skew: w.spec.Skew}), backendAt(w.spec.Servers, w.spec.SessionTimeout, w.spec.LossMargin),
		&coord.Options{Trace: w.trace})
	if err != nil {
		return err
	}
	w.m = coord.NewMutex(w.c, w.spec.Lock, &coord.MutexOptions{Keep: w.spec.Keep})
	w.say(line{Kind: "opened"})

	var work sync.WaitGroup
	defer work.Wait()
	defer w.c.Close()
	defer cancel()
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if err := w.obey(ctx, &work, commands.Text()); err != nil {
			return fmt.Errorf("%s: %w", commands.Text(), err)
		}
	}
	return commands.Err()
}

func (w *worker) obey(ctx context.Context, work *sync.WaitGroup, command string) error {
	if command == "lock" {
		w.say(line{Kind: "want"})
		work.Go(func() { w.lock(ctx, work) })
		return nil
	}
	if command == "cycle" {
		w.say(line{Kind: "cycling"})
		work.Go(func() { w.cycle(ctx) })
		return nil
	}
	if known, err := w.obeyQueue(ctx, work, command); known {
		return err
	}
	if known, err := w.obeyFleet(ctx, work, command); known {
		return err
	}
	if known, err := w.obeyProgram(ctx, work, command); known {
		return err
	}
	if known, err := w.obeySchedule(ctx, work, command); known {
		return err
	}
	if w.obeyCommit(ctx, work, command) || w.obeyElection(ctx, work, command) {
		return nil
	}
	h := w.latest()
	if h == nil {
		return fmt.Errorf("there was no hold yet")
	}
	switch command {
	case "release":
		w.say(w.about(h, "releasing", ""))
		w.say(w.about(h, "released", verdict(h.Release())))
	case "write":
		w.say(w.about(h, "writing", ""))
		fmt.Fprintln(w.conn, h.Token(), h.Path())
		answer, err := w.answers.ReadString('\n')
		if err != nil {
			return err
		}
		w.say(w.about(h, "wrote", answer[:len(answer)-1]))
	case "check":
		text := "stands"
		select {
		case <-h.Done():
			text = "done"
		default:
		}
		if err := h.Err(); err != nil {
			text += ": " + err.Error()
		}
		w.say(w.about(h, "checked", text))
	case "verify":
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		w.say(w.about(h, "verified", verdict(h.Verify(ctx))))
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

func (w *worker) lock(ctx context.Context, work *sync.WaitGroup) {
	h, err := w.m.Lock(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.say(line{Kind: "failed", Text: err.Error()})
		}
		return
	}
	w.holds(work, h, "granted")
}

// cycle acquires and releases the lock again and again.
func (w *worker) cycle(ctx context.Context) {
	for ctx.Err() == nil {
		h, err := w.m.Lock(ctx)
		if err != nil {
			continue
		}
		time.Sleep(2 * time.Millisecond) // the work under the lock
		_ = h.Release()                  // a loss is no failure here
	}
}

// holds reports that the worker has h, and later that h is done.
func (w *worker) holds(work *sync.WaitGroup, h *coord.Hold, kind string) {
	began := w.about(h, kind, "")
	began.At = proc.Now()
	done := h.Done()
	work.Go(func() {
		<-done
		at := proc.Now()
		l := w.about(h, "done", h.Err().Error())
		l.At = at
		w.say(l)
	})
	w.mu.Lock()
	w.hold = h
	w.mu.Unlock()
	w.say(began)
}

func (w *worker) latest() *coord.Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hold
}

func (w *worker) about(h *coord.Hold, kind, text string) line {
	return line{Kind: kind, Token: h.Token(), Path: h.Path(), Session: h.Session(), Text: text}
}

func (w *worker) trace(_ context.Context, e trace.Event) {
	switch e := e.(type) {
	case trace.WaitBegan:
		w.say(line{Kind: "waiting", Path: e.Node})
	case trace.WaiterRequeued:
		w.say(line{Kind: "requeued", Path: e.Path, Text: e.Err.Error()})
	case trace.StateChanged:
		w.say(line{Kind: "phase", Session: e.Session, Text: e.Phase})
	}
}

// say writes one line. A line without a time gets the current time.
func (w *worker) say(l line) {
	if l.At == 0 {
		l.At = proc.Now()
	}
	w.out.Report(l)
}

func verdict(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}
