package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told are lines of the story that matter, in order.
var told = []string{
	`ann  has the lock, with token \d+`,
	`1\. ann  token .* has the lock`,
	`2\. bob  token .* waits`,
	`3\. cid  token .* waits`,
	`ann  releases the lock`,
	`bob  has the lock, with token \d+`,
	`bob  has written`,
	`bob  is cut off`,
	`bob  knows by himself that it is lost`,
	`Err: coord: hold .* lost: session lost`,
	`cid  has the lock, with token \d+`,
	`bob  writes "bob's final version"`,
	`bob  is refused`,
	`The report says "bob's draft"`,
	`cid  has written`,
	`The report says "cid's version"`,
	`ann  has the lock, with token \d+`,
	`Nobody is in line`,
	`All was as told`,
}

// tells runs the tour and checks what it says.
func tells(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	rest := out.String()
	for _, line := range told {
		at := regexp.MustCompile(`(?m)^ *\d+\.\d{3}s +` + line).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no line matches %q in the rest of the output\n%s", line, out.String())
		}
		rest = rest[at[1]:]
	}
}

func TestTheTourOnMemory(t *testing.T) {
	start := time.Now()
	tells(t, "-session", "1s")
	t.Logf("took %v", time.Since(start).Round(time.Millisecond))
}

func TestTheTourOnZooKeeper(t *testing.T) {
	e := zktest.Run(t, nil)
	servers := strings.Join(e.Addrs(), ",")
	start := time.Now()
	tells(t, "-backend", "zookeeper", "-servers", servers, "-session", "4s", "-path", "/tours/one")
	t.Logf("took %v", time.Since(start).Round(time.Millisecond))

	s, err := zookeeper.New(e.Addrs(), nil).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names, _, err := s.Children(t.Context(), "/tours/one", nil)
	if err != nil || slices.Contains(names, "report") {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

func TestTwoToursOnOnePathKeepApart(t *testing.T) {
	store := memory.New(nil)
	c, err := coord.Open(t.Context(), store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := coord.NewMutex(c, "/coord-tour/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	tour, err := newTour(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	tour.link = func(name string) link { return store.Link(name) }
	err = errors.Join(tour.show(t.Context()), tour.close())
	if !errors.Is(err, coord.ErrLocked) || !strings.Contains(err.Error(), "-path") {
		t.Errorf("got %v, want ErrLocked and what to do", err)
	}
}

// A liar is a link that breaks nothing when it is told to.
type liar struct{ *memory.Link }

func (liar) Partition() {}

func TestTheTourFailsWhenItIsNotAsTold(t *testing.T) {
	tour, err := newTour(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New(nil)
	tour.link = func(name string) link { return liar{store.Link(name)} }
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err = errors.Join(tour.show(ctx), tour.close())
	if err == nil || !strings.Contains(err.Error(), "bob's hold did not end") {
		t.Errorf("got %v, want to hear that the hold did not end", err)
	}
}

func TestATourThatIsInterruptedCleansUp(t *testing.T) {
	store := memory.New(nil)
	var out bytes.Buffer
	tour, err := newTour(nil, &out)
	if err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	tour.link = func(name string) link { return interrupting{store.Link(name), interrupt} }
	err = errors.Join(tour.show(ctx), tour.close())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the interruption", err)
	}
	s, err := store.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names, _, err := s.Children(t.Context(), "/coord-tour", nil)
	if err != nil || !slices.Equal(names, []string{"lock"}) {
		t.Errorf("left under /coord-tour: %v, %v, want the lock's directory", names, err)
	}
	names, _, err = s.Children(t.Context(), "/coord-tour/lock", nil)
	if err != nil || len(names) != 0 {
		t.Errorf("left in the line: %v, %v", names, err)
	}
}

// interrupting interrupts the tour when it cuts the link.
type interrupting struct {
	*memory.Link
	interrupt func()
}

func (l interrupting) Partition() {
	l.Link.Partition()
	l.interrupt()
}

func TestTheCommandLineIsChecked(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-backend etcd", `-backend "etcd"`},
		{"-backend zookeeper", "needs -servers"},
		{"-servers localhost:2181", "needs -backend zookeeper"},
		{"-session 10ms", "-session 10ms"},
		{"-session 2h", "-session 2h"},
		{"-session soon", "-session"},
		{"-path relative", "-path"},
		{"-path /", "-path"},
		{"-path /zookeeper/x", "-path"},
		{"-color", "-color"},
		{"please", `"please"`},
	} {
		err := run(t.Context(), strings.Fields(c.args), io.Discard)
		if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a usage error that names %s", c.args, err, c.want)
		}
	}

	var out bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, &out); err != nil || !strings.Contains(out.String(), "-servers host:port") {
		t.Errorf("-h: %v\n%s", err, out.String())
	}
}
