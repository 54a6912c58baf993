// Program archive writes the classes that a ZooKeeper server loads into a file, from which servers start in less
// processor time:
//
//	go run ./internal/zktest/archive FILE
//	COORD_SERVER_ARGS=-XX:SharedArchiveFile=FILE go test ./...
//
// It needs Java 13 or later. A server with another Java or another class path than at that time starts without the file.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: archive FILE")
		os.Exit(2)
	}
	if err := archive(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

// archive lets the last server of an ensemble, which leads it, write its classes at its end. Then it starts a server that
// must use them.
func archive(ctx context.Context, file string) error {
	const members = 3
	e, err := zktest.Start(ctx, &zktest.Options{Servers: members, Env: func(id int) []string {
		if id < members {
			return nil
		}
		return []string{"JAVA_TOOL_OPTIONS=-XX:ArchiveClassesAtExit=" + file}
	}})
	if err != nil {
		return err
	}
	defer e.Close()
	writer := e.Servers()[members-1]
	p, err := os.FindProcess(writer.Pid())
	if err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGTERM); err != nil { // a killed server writes nothing
		return err
	}
	for writer.Alive() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond): // nothing signals its end
		}
	}
	user, err := zktest.Start(ctx, &zktest.Options{JavaArgs: []string{"-Xshare:on", "-XX:SharedArchiveFile=" + file}})
	if err != nil {
		return fmt.Errorf("a server does not start from %s: %w", file, err)
	}
	return user.Close()
}
