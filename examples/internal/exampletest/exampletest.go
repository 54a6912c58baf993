// Package exampletest runs an example in its test.
package exampletest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/etcd/etcdtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/examples/internal/service"
	"github.com/go-coord/coord/internal/pace"
	"github.com/go-coord/coord/internal/zktest"
)

// Runs runs a program on memory until each of the patterns has matched a line of its log, in this order,
// and ends its context then. The program must return nil or the end of the context.
func Runs(t *testing.T, run func(ctx context.Context, b backend.Backend) error, lines ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w := &watcher{left: lines, done: stop}
	log.SetOutput(w)
	defer log.SetOutput(os.Stderr)
	err := run(ctx, memory.New(nil))
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !errors.Is(err, context.Canceled) || len(w.left) > 0 {
		t.Errorf("error %v, no line matches %q\n%s", err, w.left, w.all.String())
	}
}

// A watcher is the output of a log: it calls done when the patterns that are left have matched.
type watcher struct {
	mu   sync.Mutex
	left []string
	done func()
	all  bytes.Buffer
}

func (w *watcher) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(line)
	if len(w.left) > 0 && regexp.MustCompile(w.left[0]).Match(line) {
		if w.left = w.left[1:]; len(w.left) == 0 {
			w.done()
		}
	}
	return len(line), nil
}

// Tells runs the example on memory, on a ZooKeeper server, on an etcd server and on a PostgreSQL server. Each of the
// patterns in told must match the beginning of a line of the story, including its subject, in
// this order. On the servers no node of the example may be left.
func Tells(t *testing.T, name string, story service.Story, told ...string) {
	t.Run("memory", func(t *testing.T) {
		tells(t, name, story, told, "-session", "1s")
	})
	t.Run("zookeeper", func(t *testing.T) {
		servers := zktest.Run(t, nil).Addrs()
		tellsOn(t, name, story, told, "zookeeper", servers, zookeeper.New(servers, nil))
	})
	t.Run("etcd", func(t *testing.T) {
		servers := []string{etcdtest.Start(t, nil).Addr()}
		tellsOn(t, name, story, told, "etcd", servers, etcd.New(servers, nil))
	})
	t.Run("postgres", func(t *testing.T) {
		at := pgtest.Start(t, nil).URL("")
		tellsOn(t, name, story, told, "postgres", []string{at}, postgres.New(at, nil))
	})
}

func tellsOn(t *testing.T, name string, story service.Story, told []string, kind string, servers []string, b backend.Backend) {
	t.Helper()
	// A busy machine must not lose sessions that the story keeps.
	tells(t, name, story, told, "-backend", kind, "-servers", strings.Join(servers, ","), "-session", "6s")
	s, err := b.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names, _, err := s.Children(t.Context(), "/coord-examples", nil)
	if err != nil && !errors.Is(err, backend.ErrNotFound) || len(names) > 0 {
		t.Errorf("nodes left: %v, %v", names, err)
	}
}

func tells(t *testing.T, name string, story service.Story, told []string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	start := time.Now()
	if err := service.Run(t.Context(), name, args, &out, story); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("took %v", time.Since(start).Round(time.Millisecond))
	rest := out.String()
	for _, line := range append(slices.Clone(told), "Every step was checked") {
		at := regexp.MustCompile(`(?m)^ *\d+\.\d{3}s +` + line).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no line matches %q in the rest of the story\n%s", line, out.String())
		}
		rest = rest[at[1]:]
	}
}

// liar is a link whose Partition does nothing.
type liar struct{ *memory.Link }

func (liar) Partition() {}

// Doubts runs the example on a service whose links cannot be cut, so that its story about the
// loss of contact is not true. It must fail, with an error that contains want, within two
// seconds, unless the machine did other work for some of this time.
func Doubts(t *testing.T, story service.Story, want string) {
	t.Helper()
	store := memory.New(nil)
	s := service.New("/doubts", time.Second, func(name string) service.Link { return liar{store.Link(name)} }, io.Discard)
	defer s.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	m := pace.Start(t, nil)
	err := story(ctx, s)
	switch lost := m.Lost(); {
	case err != nil && strings.Contains(err.Error(), want):
	case err != nil && lost > time.Second/2:
		t.Logf("not judged: %v; the machine did other work for %v", err, lost)
	default:
		t.Errorf("got %v, want an error that contains %q", err, want)
	}
}
