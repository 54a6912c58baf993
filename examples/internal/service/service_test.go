package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd/etcdtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/internal/zktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheCommandLineIsChecked(t *testing.T) {
	story := func(context.Context, *Service) error {
		t.Error("the example runs although the command line is invalid")
		return nil
	}
	for _, c := range []struct{ args, want string }{
		{"-backend consul", `-backend "consul"`},
		{"-backend zookeeper", "-backend zookeeper needs -servers"},
		{"-backend etcd", "-backend etcd needs -servers"},
		{"-backend postgres", "-backend postgres needs -servers"},
		{"-backend postgres -servers nonsense", "-servers"},
		{"-servers localhost:2181", "needs -backend zookeeper"},
		{"-session 10ms", "-session 10ms"},
		{"-session 2h", "-session 2h"},
		{"-session soon", "-session"},
		{"-path relative", "-path"},
		{"-path /x//y", "-path"},
		{"-color", "-color"},
		{"please", `"please"`},
	} {
		err := Run(t.Context(), "example", strings.Fields(c.args), io.Discard, story)
		if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a usage error that names %s", c.args, err, c.want)
		}
	}

	var out bytes.Buffer
	if err := Run(t.Context(), "example", []string{"-h"}, &out, story); err != nil || !strings.Contains(out.String(), "-servers host:port") {
		t.Errorf("-h: %v\n%s", err, out.String())
	}
}

func TestTheErrorOfAStoryIsReported(t *testing.T) {
	var out bytes.Buffer
	wrong := errors.New("wrong result")
	err := Run(t.Context(), "example", nil, &out, func(context.Context, *Service) error { return wrong })
	if !errors.Is(err, wrong) || strings.Contains(out.String(), "as told") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}

func TestCloseRemovesAllNodesOfTheRunAndNoOthers(t *testing.T) {
	store := memory.New(nil)
	other, err := store.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, path := range []string{"/runs", "/runs/a", "/runs/b"} {
		if _, err := other.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	s := New("/runs/a", 0, func(name string) Link { return store.Link(name) }, io.Discard)
	_, link, err := s.Open(t.Context(), "client")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/runs/a/x", "/runs/a/x/y", "/runs/a/z"} {
		if _, err := other.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); err != nil {
			t.Fatal(err)
		}
	}
	// An ephemeral node of a session that is never closed.
	if _, err := other.Commit(t.Context(), backend.Create("/runs/a/z/e", nil, backend.Ephemeral)); err != nil {
		t.Fatal(err)
	}
	link.Partition()
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	names, _, err := other.Children(t.Context(), "/runs", nil)
	if err != nil || len(names) != 1 || names[0] != "b" {
		t.Errorf("left: %v, %v, want b", names, err)
	}
}

func TestALinkToServersStallsUntilItIsHealed(t *testing.T) {
	t.Run("zookeeper", func(t *testing.T) {
		stalls(t, "-backend", "zookeeper", "-servers", strings.Join(zktest.Run(t, nil).Addrs(), " "), "-session", "6s")
	})
	t.Run("etcd", func(t *testing.T) {
		stalls(t, "-backend", "etcd", "-servers", etcdtest.Start(t, nil).Addr(), "-session", "6s")
	})
	t.Run("postgres", func(t *testing.T) {
		stalls(t, "-backend", "postgres", "-servers", pgtest.Start(t, nil).URL(""), "-session", "6s")
	})
}

func stalls(t *testing.T, args ...string) {
	t.Helper()
	run := func(ctx context.Context, s *Service) error {
		c, link, err := s.Open(ctx, "client")
		if err != nil {
			return err
		}
		session, err := c.Session(ctx)
		if err != nil {
			return err
		}
		link.Partition()
		done := make(chan error, 1)
		go func() { done <- session.Sync(ctx, "/") }()
		<-session.Done() // by its lease: there is no other signal
		if err := <-done; !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("a request over a link that is cut ends with %v", err)
		}
		link.Heal()
		next, err := c.Session(ctx)
		if err != nil {
			return err
		}
		if next.ID() == session.ID() {
			t.Error("the lost session is back")
		}
		return next.Sync(ctx, "/")
	}
	if err := Run(t.Context(), "example", args, io.Discard, run); err != nil {
		t.Error(err)
	}
}
