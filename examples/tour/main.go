// Tour shows what a lock of package coord does, and what it does when its holder
// is cut off from the service. It needs nothing installed:
//
//	go run ./examples/tour
//
// The same on a real ensemble:
//
//	go run ./examples/tour -backend zookeeper -servers host1:2181,host2:2181
//
// Everything that it tells is checked; the exit status is 1 if something is not
// as told.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills
	err := run(ctx, os.Args[1:], os.Stdout)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
		return
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "tour: %v\nRun it with -h to see its flags.\n", err)
		os.Exit(2)
	case interrupted:
		fmt.Fprintln(os.Stderr, "tour: interrupted")
	default:
		fmt.Fprintf(os.Stderr, "tour: %v\n", err)
	}
	os.Exit(1)
}

// errUsage: the command line makes no sense.
var errUsage = errors.New("bad command line")

// run is the program without its process.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	t, err := newTour(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	// Far more than it takes, so that a service that hangs does not hang us.
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second+10*t.timeout)
	defer cancel()
	return errors.Join(t.show(ctx), t.close())
}

// newTour reads the flags.
func newTour(args []string, stdout io.Writer) (*tour, error) {
	flags := flag.NewFlagSet("tour", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by main
	var (
		service = flags.String("backend", "memory", "the service: memory or zookeeper")
		servers = flags.String("servers", "", "the servers of -backend zookeeper, as `host:port,…`")
		timeout = flags.Duration("session", 0, "the session timeout (default 2s on memory, 4s on zookeeper)")
		path    = flags.String("path", "/coord-tour", "the node to work under")
	)
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stdout, "Tour shows what a lock does when its holder is cut off. Its flags:")
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}

	t := &tour{out: stdout, lockPath: *path + "/lock", reportPath: *path + "/report"}
	list := strings.FieldsFunc(*servers, func(r rune) bool { return r == ',' || r == ' ' })
	if *timeout == 0 {
		*timeout = 2 * time.Second
		if *service == "zookeeper" {
			*timeout = 4 * time.Second // the least that servers grant with their usual tick of 2 s
		}
	}
	t.timeout = *timeout
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("%w: unexpected argument %q", errUsage, flags.Arg(0))
	case *timeout < time.Second || *timeout > time.Minute:
		return nil, fmt.Errorf("%w: -session %v: want from 1s to 1m", errUsage, *timeout)
	case *path == "/":
		return nil, fmt.Errorf("%w: -path /: the tour needs a node of its own", errUsage)
	case backend.CheckPath(*path) != nil:
		return nil, fmt.Errorf("%w: -path: %w", errUsage, backend.CheckPath(*path))
	case *service == "memory" && len(list) > 0:
		return nil, fmt.Errorf("%w: -servers needs -backend zookeeper", errUsage)
	case *service == "memory":
		t.service = "a service in memory"
		store := memory.New(&memory.Options{SessionTimeout: *timeout})
		t.link = func(name string) link { return store.Link(name) }
	case *service == "zookeeper" && len(list) == 0:
		return nil, fmt.Errorf("%w: -backend zookeeper needs -servers host:port,…", errUsage)
	case *service == "zookeeper":
		t.service = "ZooKeeper at " + strings.Join(list, ", ")
		t.link = func(string) link {
			return newWire(list, zookeeper.Options{SessionTimeout: *timeout})
		}
	default:
		return nil, fmt.Errorf("%w: -backend %q: want memory or zookeeper", errUsage, *service)
	}
	return t, nil
}
