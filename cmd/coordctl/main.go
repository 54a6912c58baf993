// Coordctl is coordination for people and scripts: it runs a command under a lock,
// or for as long as it leads, shows what stands under a path, and uses queues.
//
//	coordctl [flags] lock PATH -- COMMAND [ARGUMENT…]
//	coordctl [flags] elect PATH -- COMMAND [ARGUMENT…]
//	coordctl [flags] inspect PATH
//	coordctl [flags] queue put PATH [VALUE…]
//	coordctl [flags] queue take PATH
//	coordctl [flags] queue len PATH
//	coordctl [flags] watch PATH
//
// To install it:
//
//	go install github.com/go-coord/coord/cmd/coordctl@latest
//
// Flags may also come behind the verb, up to "--". For example
//
//	coordctl -servers zk1:2181,zk2:2181 lock -wait 1m /locks/backup -- backup.sh --full
//
// # lock
//
// waits for the mutex at PATH, runs COMMAND, and releases the mutex when COMMAND has
// ended. It excludes everybody who uses that mutex, in whatever language; see the
// layout of coord.Mutex. COMMAND finds in its environment
//
//	COORD_TOKEN  the fencing token, a number that grows from one holder to the next
//	COORD_PATH   PATH
//	COORD_NODE   the node of the hold, for a check in a transaction
//
// When the lock is lost COMMAND gets SIGTERM at once, and SIGKILL after -grace. So
// it does not outlive the lock by more than a second: as a rule it ends before
// anybody else can be granted, for the loss of contact is noticed -margin before the
// service ends the session. Nothing helps a machine that is paused as a whole: where
// two at once could do harm, COMMAND hands its token to the resource, which refuses
// lower ones than it has seen.
//
// On Linux COMMAND also dies with coordctl, whatever kills that: the kernel sends it
// SIGKILL. That reaches COMMAND itself, a direct child, and not what it has started;
// nor a COMMAND that changes its user or group, or has capabilities. A coordctl that
// is stopped (SIGSTOP) cannot kill, so COMMAND then outlives the lock. Elsewhere than
// on Linux COMMAND outlives a coordctl that is killed.
//
// COMMAND runs in a process group of its own. What it leaves there is killed when it
// has ended, before the lock is released. Its standard input, output and error are
// those of coordctl, but a terminal is no input for it: it would be stopped when it
// reads, with the lock in its hand.
//
// SIGINT, SIGTERM and SIGHUP are passed on to the group, and the lock is released
// only when COMMAND has ended. Before COMMAND runs they end the wait.
//
// # elect
//
// campaigns in the election at PATH, as -id, and runs COMMAND when it leads. All that
// is said of lock holds. When leadership is lost COMMAND is ended, and coordctl
// campaigns again, unless -once is given. When COMMAND ends by itself coordctl
// resigns and ends.
//
// # inspect
//
// shows what coord.Inspect says of PATH: which recipe, who holds it, who waits for
// whom. With -json for programs. Data that users have stored is shown with -data only.
//
// # queue
//
// puts values into the coord.Queue at PATH as they are, or without values standard
// input as one, and prints their ids; takes one item, writes it as it is to standard
// output, and acknowledges it when it is written; and counts the items.
//
// # watch
//
// prints a line for each node at PATH and below that is there, is created, changed or
// deleted, until it is interrupted.
//
// # Credentials
//
// COORD_DIGEST in the environment is "user:password" for ZooKeeper's digest scheme.
// It is no flag, since everybody on the machine can read flags. COMMAND inherits it.
// COORD_SERVERS is used where -servers is not given. For TLS there are files:
// -tls-ca, and -tls-cert with -tls-key.
//
// # Exit status
//
//	that of COMMAND, or 128 and the number of the signal that killed it
//	0    done
//	2    the command line makes no sense
//	123  the lock, or with -once leadership, was lost while COMMAND ran
//	124  not obtained within -wait: the lock, leadership, or an item
//	125  the service cannot be reached within 30 s or -wait, or has refused something
//	126  COMMAND cannot be run
//	127  COMMAND was not found
//	128 and the number of a signal that ended coordctl while it waited
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// What coordctl exits with besides what COMMAND does.
const (
	exitUsage     = 2
	exitLost      = 123
	exitLate      = 124
	exitFailed    = 125
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignal    = 128 // and its number
)

func main() {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup
			signal.Notify(signals, s)
		}
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, signals))
}

// run is main without the process.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	t := &tool{stdin: stdin, stdout: stdout, stderr: stderr, signals: signals}
	err := t.parse(args)
	if err == nil && t.verb != "" {
		err = t.do(context.Background())
	}
	var e *exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		if e.err != nil {
			t.say("%v", e.err)
		}
		return e.status
	}
	t.say("%v", err)
	return exitFailed
}

// exit is an error with an exit status of its own. Without an err it is silent.
type exit struct {
	status int
	err    error
}

func (e *exit) Error() string { return fmt.Sprintf("exit %d: %v", e.status, e.err) }
func (e *exit) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exit{exitUsage, fmt.Errorf(format+"\nRun coordctl -h to see how it is used.", args...)}
}

// say tells a person something.
func (t *tool) say(format string, args ...any) {
	fmt.Fprintf(t.stderr, "coordctl: "+format+"\n", args...)
}
