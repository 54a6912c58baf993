package zktest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAFailedStartShowsTheLog(t *testing.T) {
	Require(t)
	e, err := Start(t.Context(), &Options{Config: map[string]string{"tickTime": "never"}})
	if err == nil {
		e.Close()
		t.Fatal("started with a bad configuration")
	}
	if !strings.Contains(err.Error(), "never") || !strings.Contains(err.Error(), "exit status") {
		t.Errorf("the error shows neither why nor how the server ended: %v", err)
	}
}

func TestAnEndedContextEndsTheStart(t *testing.T) {
	Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e, err := Start(ctx, nil)
	if err == nil {
		e.Close()
		t.Fatal("started")
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, o := range []Options{{Servers: 2}, {Servers: -1}, {InitLimit: -1}, {TickTime: 1}, {MaxSessionTimeout: -1}} {
		if e, err := Start(t.Context(), &o); err == nil {
			e.Close()
			t.Errorf("started with %+v", o)
		}
	}
}

func TestATakenPortIsAvoided(t *testing.T) {
	Require(t)
	for i, which := range []string{"client", "quorum", "election"} {
		t.Run(which, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var taken []net.Listener
			defer func() {
				for _, l := range taken {
					l.Close()
				}
			}()
			choose := func(n int) ([]int, error) {
				ports, err := FreePorts(n)
				if err != nil || len(taken) > 0 {
					return ports, err
				}
				for k := i; k < n; k += portsPerServer {
					l, err := net.Listen("tcp4", loopback(ports[k]))
					if err != nil {
						return nil, err
					}
					taken = append(taken, l)
				}
				return ports, nil
			}
			servers := 3
			if which == "client" {
				servers = 1
			}
			e, err := startOn(ctx, &Options{Servers: servers, Dir: t.TempDir()}, choose)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if len(taken) != servers {
				t.Errorf("%d ports were taken, want %d", len(taken), servers)
			}
			if _, err := e.Leader(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnotherServerOnThePortIsNotMistakenForThisOne(t *testing.T) {
	e := shared.Get(t)
	other := e.Servers()[0]
	impostor := &Server{ensemble: e, id: 1, dir: t.TempDir(), ports: other.ports}
	if err := impostor.serving(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("error %v, want %v", err, errPortTaken)
	}
	if err := other.serving(t.Context()); err != nil {
		t.Errorf("the owner of the port: %v", err)
	}
}

func TestAGivenDirectoryIsKeptAndNotReused(t *testing.T) {
	Require(t)
	dir := t.TempDir()
	e, err := Start(t.Context(), &Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	s := e.Servers()[0]
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.LogFile()); err != nil {
		t.Errorf("the log is missing: %v", err)
	}
	if s.LogTail() == "" {
		t.Error("the log is empty")
	}
	if e, err := Start(t.Context(), &Options{Dir: dir}); err == nil {
		e.Close()
		t.Error("started on the data of another ensemble")
	}
}

func TestTheArgumentsOfTheEnvironmentComeBeforeThoseOfTheOptions(t *testing.T) {
	t.Setenv("COORD_SERVER_ARGS", " -Da=1  -Db=2 ")
	s := &Server{ensemble: &Ensemble{}, dir: t.TempDir(), javaArgs: []string{"-Db=3"}}
	args := s.command().Args
	if i := slices.Index(args, "-Da=1"); i < 0 || !slices.Equal(args[i:i+3], []string{"-Da=1", "-Db=2", "-Db=3"}) {
		t.Errorf("arguments %q", args)
	}
}

func TestFindSaysWhatToInstall(t *testing.T) {
	t.Setenv("ZOOKEEPER_CLASSPATH", "elsewhere.jar")
	t.Setenv("JAVA_HOME", "")
	if cp, err := Find(); err == nil && cp != "elsewhere.jar" {
		t.Errorf("class path %q, want the one of the environment", cp)
	}
	t.Setenv("JAVA_HOME", t.TempDir())
	_, err := Find()
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install zookeeper") {
		t.Errorf("without java: %v", err)
	}
	if _, err := Start(t.Context(), nil); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("start without java: %v", err)
	}
}

// The folder has the layout of the release: all jars in lib.
func TestServersStartFromTheFolderOfARelease(t *testing.T) {
	Require(t)
	if os.Getenv("ZOOKEEPER_CLASSPATH") != "" {
		t.Skip("the jars of the release are made of Debian's")
	}
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	jars, err := filepath.Glob("/usr/share/java/*.jar")
	if err != nil {
		t.Fatal(err)
	}
	for _, jar := range jars {
		name := filepath.Base(jar)
		if !strings.HasPrefix(name, "zookeeper") && !strings.HasPrefix(name, "netty") && !strings.HasPrefix(name, "slf4j-") && !strings.HasPrefix(name, "snappy") && !strings.HasPrefix(name, "metrics") && !strings.HasPrefix(name, "commons-") {
			continue
		}
		if err := os.Symlink(jar, filepath.Join(home, "lib", name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("ZOOKEEPER_HOME", home)
	cp, err := Find()
	if err != nil || !strings.Contains(cp, filepath.Join(home, "lib", "zookeeper.jar")) {
		t.Fatalf("class path %q, %v", cp, err)
	}
	e := Run(t, nil)
	if role, err := e.Servers()[0].Role(t.Context()); err != nil || role != Standalone {
		t.Errorf("role %q, %v", role, err)
	}
	t.Setenv("ZOOKEEPER_HOME", t.TempDir())
	if _, err := Find(); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "ZOOKEEPER_HOME is set") {
		t.Errorf("a folder without jars: %v", err)
	}
}

func TestRequireFailsWhereItMustNotSkip(t *testing.T) {
	t.Setenv("JAVA_HOME", t.TempDir())
	for _, c := range []struct {
		env           string
		skips, failed bool
	}{{"", true, false}, {"1", false, true}} {
		t.Setenv("COORD_REQUIRE_ZK", c.env)
		tb := &recorder{TB: t}
		var wg sync.WaitGroup
		wg.Go(func() { Require(tb) })
		wg.Wait()
		if tb.skipped != c.skips || tb.failed != c.failed {
			t.Errorf("COORD_REQUIRE_ZK=%q: skipped %v, failed %v", c.env, tb.skipped, tb.failed)
		}
		if !strings.Contains(tb.message, "install") {
			t.Errorf("message %q does not say what to install", tb.message)
		}
	}
}
