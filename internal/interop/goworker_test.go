//go:build linux

package interop

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/trace"
)

// workerEnv makes the test binary a worker: "name server timeout". See peer.
const workerEnv = "COORD_INTEROP_WORKER"

// goWorker is a worker process with coord's locks. It supports two kinds, mutex and election.
type goWorker struct {
	name    string
	c       *coord.Client
	work    sync.WaitGroup
	stopped atomic.Bool

	mu   sync.Mutex
	held map[string]*coord.Hold
	out  sync.Mutex
}

func workerMain(spec string) (code int) {
	w := &goWorker{held: make(map[string]*coord.Hold)}
	if err := w.run(spec); err != nil {
		w.say("failed", err.Error())
		return 1
	}
	return 0
}

func (w *goWorker) say(words ...string) {
	w.out.Lock()
	defer w.out.Unlock()
	fmt.Println(strings.Join(words, " "))
}

func (w *goWorker) run(spec string) error {
	words := strings.Fields(spec)
	if len(words) != 3 {
		return fmt.Errorf("bad specification %q", spec)
	}
	w.name = words[0]
	timeout, err := time.ParseDuration(words[2])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opening, opened := context.WithTimeout(ctx, limit)
	defer opened()
	w.c, err = coord.Open(opening, zookeeper.New(words[1:2], &zookeeper.Options{SessionTimeout: timeout}),
		&coord.Options{Trace: w.trace})
	if err != nil {
		return err
	}
	w.say("opened")
	defer w.work.Wait()
	defer w.c.Close()
	defer cancel()
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		if err := w.obey(ctx, strings.Fields(commands.Text())); err != nil {
			w.say("failed", commands.Text()+":", err.Error())
		}
	}
	return commands.Err()
}

func (w *goWorker) trace(_ context.Context, e trace.Event) {
	switch e := e.(type) {
	case trace.StateChanged:
		w.say("state", e.Phase)
	case trace.WaitBegan:
		w.say("waiting", e.Node)
	}
}

func (w *goWorker) obey(ctx context.Context, c []string) error {
	switch {
	case len(c) == 4 && c[0] == "lock":
		take, err := w.recipe(c[2], c[3])
		if err != nil {
			return err
		}
		w.say("want", c[1])
		w.work.Go(func() { w.lock(ctx, c[1], take) })
	case len(c) == 4 && c[0] == "loop":
		take, err := w.recipe(c[1], c[2])
		if err != nil {
			return err
		}
		w.stopped.Store(false)
		w.work.Go(func() {
			turns, err := w.loop(ctx, take, c[3])
			if err != nil {
				w.say("failed", "loop:", err.Error())
				return
			}
			w.say("looped", fmt.Sprint(turns))
		})
	case len(c) == 1 && c[0] == "stop":
		w.stopped.Store(true)
	case len(c) == 2 && c[0] == "release":
		w.mu.Lock()
		h := w.held[c[1]]
		delete(w.held, c[1])
		w.mu.Unlock()
		if h == nil {
			return fmt.Errorf("not held")
		}
		if err := h.Release(); err != nil {
			return err
		}
		w.say("released", c[1])
	default:
		return fmt.Errorf("no such command")
	}
	return nil
}

// recipe returns the function that acquires a lock, or leads.
func (w *goWorker) recipe(kind, path string) (take func(context.Context) (*coord.Hold, error), err error) {
	switch kind {
	case "mutex":
		return coord.NewMutex(w.c, path, &coord.MutexOptions{Data: []byte(w.name)}).Lock, nil
	case "kept":
		return coord.NewMutex(w.c, path, &coord.MutexOptions{Keep: time.Hour}).Lock, nil
	case "election":
		return campaign(coord.NewElection(w.c, path, &coord.ElectionOptions{ID: w.name})), nil
	}
	return nil, fmt.Errorf("no such kind")
}

// campaign adapts an election to the interface of a lock.
func campaign(e *coord.Election) func(context.Context) (*coord.Hold, error) {
	return func(ctx context.Context) (*coord.Hold, error) {
		t, err := e.Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return t.Hold, nil
	}
}

func (w *goWorker) lock(ctx context.Context, id string, take func(context.Context) (*coord.Hold, error)) {
	h, err := take(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.say("failed", id+":", err.Error())
		}
		return
	}
	w.mu.Lock()
	w.held[id] = h
	w.mu.Unlock()
	w.say("granted", id, h.Path(), fmt.Sprint(h.Token()))
}

// loop acquires and releases the lock until it is told to stop, and visits the room while it
// holds.
func (w *goWorker) loop(ctx context.Context, take func(context.Context) (*coord.Hold, error), room string) (turns int, err error) {
	conn, err := net.Dial("tcp", room)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	ask := func(words ...any) error {
		if _, err := fmt.Fprintln(conn, words...); err != nil {
			return err
		}
		_, err := answers.ReadString('\n')
		return err
	}
	for ; !w.stopped.Load(); turns++ {
		h, err := take(ctx)
		if err != nil {
			return turns, err
		}
		if err := ask("enter", w.name, h.Path()); err != nil {
			return turns, err
		}
		if err := h.Verify(ctx); err != nil {
			return turns, err
		}
		if err := ask("leave", w.name, h.Token()); err != nil {
			return turns, err
		}
		if err := h.Release(); err != nil {
			return turns, err
		}
	}
	return turns, nil
}
