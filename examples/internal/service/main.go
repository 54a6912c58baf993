package service

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
)

// A Story is an example: it reports its steps with Say, and fails when a step does not have
// the described result.
type Story func(ctx context.Context, s *Service) error

// Main is the main function of the example called name. It exits with status 1 if the story
// fails or is interrupted, and with 2 if the command line is invalid.
func Main(name string, story Story) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills the process
	err := Run(ctx, name, os.Args[1:], os.Stdout, story)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
		return
	case errors.Is(err, ErrUsage):
		fmt.Fprintf(os.Stderr, "%s: %v\nRun it with -h to see its flags.\n", name, err)
		os.Exit(2)
	case interrupted && errors.Is(err, context.Canceled):
		fmt.Fprintf(os.Stderr, "%s: interrupted\n", name)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(1)
}

// ErrUsage: the command line is invalid.
var ErrUsage = errors.New("bad command line")

// Run is Main without the process.
func Run(ctx context.Context, name string, args []string, stdout io.Writer, story Story) error {
	s, err := open(name, args, stdout)
	if s == nil || err != nil {
		return err
	}
	// The limit is far more than the example needs; it bounds a service that hangs.
	ctx, cancel := context.WithTimeout(ctx, time.Minute+10*s.Timeout)
	defer cancel()
	err = story(ctx, s)
	if err == nil {
		s.Say("", "Every step was checked.")
	}
	// Clean up also after an interruption.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second+5*s.Timeout)
	defer cancel()
	return errors.Join(err, s.Close(ctx))
}

// parse reads the flags. After -h it prints them, and returns true: the program is to end.
func parse(flags *flag.FlagSet, args []string, stdout io.Writer) (help bool, err error) {
	flags.SetOutput(io.Discard) // errors are printed once, by Main
	err = flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(stdout, "%s is an example of package coord. Its flags:\n", flags.Name())
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return true, nil
	case err != nil:
		return false, usage("%w", err)
	case flags.NArg() > 0:
		return false, usage("unexpected argument %q", flags.Arg(0))
	}
	return false, nil
}

// open reads the flags. After -h there is no service and no error.
func open(name string, args []string, stdout io.Writer) (*Service, error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	var (
		kind    = flags.String("backend", "memory", "the service: memory, zookeeper, etcd or postgres")
		servers = flags.String("servers", "", "the servers of -backend zookeeper or etcd, as `host:port,…`, or the connection string of -backend postgres")
		timeout = flags.Duration("session", 0, "the session timeout (default 1.5s on memory, 4s on servers)")
		path    = flags.String("path", "/coord-examples", "the node to work under")
	)
	if help, err := parse(flags, args, stdout); help || err != nil {
		return nil, err
	}
	hosts := list(*servers)
	if *timeout == 0 {
		*timeout = 1500 * time.Millisecond
		if *kind != "memory" {
			*timeout = 4 * time.Second // the shortest that ZooKeeper grants with its default tick of 2 s
		}
	}
	switch {
	case *timeout < time.Second || *timeout > time.Minute:
		return nil, usage("-session %v: want from 1s to 1m", *timeout)
	case backend.CheckPath(*path) != nil:
		return nil, usage("-path: %w", backend.CheckPath(*path))
	case *kind == "memory" && len(hosts) > 0:
		return nil, usage("-servers needs -backend zookeeper, etcd or postgres")
	case (*kind == "zookeeper" || *kind == "etcd") && len(hosts) == 0:
		return nil, usage("-backend %s needs -servers host:port,…", *kind)
	case *kind == "postgres" && *servers == "":
		return nil, usage("-backend postgres needs -servers postgres://user@host:port/database")
	}

	// Concurrent runs, and nodes that an earlier run could not remove, stay separate.
	root := strings.TrimSuffix(*path, "/") + "/" + name + "-" + strings.ToLower(rand.Text()[:8])
	wires := func(about, at string, open func(dial dialer) backend.Backend) (*Service, error) {
		s := New(root, *timeout, func(string) Link { return newWire(open) }, stdout)
		s.About = about + " at " + at
		return s, nil
	}
	switch *kind {
	case "memory":
		store := memory.New(&memory.Options{SessionTimeout: *timeout})
		s := New(root, *timeout, func(name string) Link { return store.Link(name) }, stdout)
		s.About = "a service in memory"
		return s, nil
	case "zookeeper":
		return wires("ZooKeeper", strings.Join(hosts, ", "), func(dial dialer) backend.Backend {
			return zookeeper.New(hosts, &zookeeper.Options{SessionTimeout: *timeout, Dial: dial})
		})
	case "etcd":
		return wires("etcd", strings.Join(hosts, ", "), func(dial dialer) backend.Backend {
			return etcd.New(hosts, &etcd.Options{SessionTimeout: *timeout, Dial: dial})
		})
	case "postgres":
		c, err := pgconn.ParseConfig(*servers)
		if err != nil {
			return nil, usage("-servers: %w", err)
		}
		return wires("PostgreSQL", c.Host, func(dial dialer) backend.Backend {
			return postgres.New(*servers, &postgres.Options{SessionTimeout: *timeout, BeforeConnect: func(_ context.Context, c *pgconn.Config) error {
				c.DialFunc = pgconn.DialFunc(dial)
				return nil
			}})
		})
	}
	return nil, usage("-backend %q: want memory, zookeeper, etcd or postgres", *kind)
}

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUsage, fmt.Errorf(format, args...))
}

// list splits the value of -servers.
func list(servers string) []string {
	return strings.FieldsFunc(servers, func(r rune) bool { return r == ',' || r == ' ' })
}
