// Coordctl is coordination for operators and scripts: it runs a command under a lock, or for
// as long as it leads, shows the state of a path or a tree, and uses and repairs what it finds.
//
//	coordctl [flags] lock PATH -- COMMAND [ARGUMENT…]
//	coordctl [flags] elect PATH -- COMMAND [ARGUMENT…]
//	coordctl [flags] elect --resign PATH
//	coordctl [flags] guard -- COMMAND [ARGUMENT…]
//	coordctl [flags] guard --listen PATH
//	coordctl [flags] check [PATH]
//	coordctl [flags] tree [PATH]
//	coordctl [flags] inspect PATH
//	coordctl [flags] watch PATH
//	coordctl [flags] top [PATH]
//	coordctl [flags] ui [PATH]
//	coordctl [flags] shards PATH
//	coordctl [flags] revoke PATH
//	coordctl [flags] queue PATH
//	coordctl [flags] queue put|take|pop|len|stats|dead|redrive|remove|purge PATH …
//	coordctl [flags] value get|set|edit|watch|delete PATH …
//	coordctl [flags] counter get|add PATH …
//	coordctl [flags] group list|watch|join PATH …
//	coordctl [flags] barrier set|remove|wait|status PATH
//	coordctl [flags] schedule list|run|pause|resume PATH
//	coordctl [flags] tx list|status|recover PATH …
//	coordctl [flags] prune [PATH]
//	coordctl [flags] postgres migrate
//
// "coordctl help VERB" describes each of them. The verbs that run a command, and those of queues,
// are described here too.
//
// To install it:
//
//	go install github.com/go-coord/coord/cmd/coordctl@latest
//
// Flags may also come after the verb, up to "--". For example
//
//	coordctl -servers zk1:2181,zk2:2181 lock -wait 1m /locks/backup -- backup.sh --full
//	coordctl -backend etcd -servers etcd1:2379 -prefix orders inspect /locks/report
//	coordctl -backend postgres -servers postgres://orders@db1/orders inspect /locks/report
//
// # lock
//
// waits for the mutex at PATH, runs COMMAND, and releases the mutex when COMMAND has ended.
// It excludes all clients that use this mutex, on ZooKeeper in any language; see the layout of
// coord.Mutex. The environment of COMMAND contains
//
//	COORD_TOKEN  the fencing token, a number that grows from one holder to the next
//	COORD_PATH   PATH
//	COORD_NODE   the node of the hold, for a check in a transaction
//
// When the lock is lost COMMAND gets SIGTERM at once, and SIGKILL after -grace. So it
// outlives the lock by at most a second. Normally it ends before the next grant, because
// coordctl notices the loss of contact -margin before the service ends the session. This does
// not help on a machine that is paused as a whole: where two commands at once could do harm,
// COMMAND passes its token to the resource, which refuses tokens lower than the highest that
// it has seen.
//
// On Linux COMMAND also dies with coordctl, however coordctl is killed: the kernel sends
// COMMAND SIGKILL. It sends it only to COMMAND itself, a direct child, and not to processes
// that COMMAND has started; nor to a COMMAND that changes its user or group, or has
// capabilities. A coordctl that is stopped (SIGSTOP) cannot kill, so COMMAND then outlives
// the lock. On other systems COMMAND outlives a coordctl that is killed.
//
// COMMAND runs in a process group of its own. Processes that it leaves there are killed when
// it has ended, before the lock is released. Its standard input, output and error are those
// of coordctl, except that a terminal is not used as input: a read from it would stop COMMAND
// while it holds the lock.
//
// SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded to the group, and the lock is released only when
// COMMAND has ended. Before COMMAND runs they end the wait.
//
// When another client asks for the lock (coordctl revoke, Mutex.Revoke), COMMAND gets -revoke-signal,
// by default SIGTERM, and SIGKILL after -revoke-grace. The lock is released when COMMAND has ended, and the
// exit status is that of COMMAND. If the request is enforced before, the lock is lost.
//
// # elect
//
// campaigns in the election at PATH, as -id, and runs COMMAND when it leads. Everything said
// about lock applies. When leadership is lost COMMAND is ended, and coordctl campaigns again
// unless -once is given. When COMMAND ends by itself coordctl resigns and ends. A leader that is asked
// to resign campaigns again, behind all other candidates, unless -once is given or a signal has come.
//
// With -resign and without COMMAND it asks the leader to resign, and waits until its term has ended.
//
// # guard
//
// runs COMMAND, and ends the sessions that it reports (package supervisor) when it has died, so that its locks do not
// wait for the session timeout. With --listen it does so for the processes that connect to a socket.
//
// # inspect
//
// shows the report of package inspect about PATH: the recipe, the holders, and who waits for
// whom. -json prints it for programs. Stored data is shown only with -data.
//
// # queue
//
// prints the figures of the queue at PATH, of any kind and with values of any type: a line for
// each of coord.QueueStats, in seconds where it is a time, or with -json an object. It costs a
// few requests, however long the queue is. The dead letters are those at the default path; for
// others, print the figures of their own path.
//
// queue put puts values into the coord.Queue at PATH unchanged, or without values standard input
// as one value, and prints their ids. queue take takes one item, writes it unchanged to standard
// output, and acknowledges it when it is written. queue len counts the items.
//
// # watch
//
// prints a line for each node at PATH and below that exists, is created, changed or deleted,
// until it is interrupted.
//
// # Credentials
//
// COORD_DIGEST in the environment is "user:password" for ZooKeeper's digest scheme, and
// COORD_USER is that of a user of etcd or PostgreSQL. They are not flags, since all users of the machine can
// read flags. COMMAND inherits them. COORD_SERVERS and COORD_BACKEND are used if -servers and
// -backend are not given, and the variables of psql for what -servers does not say of PostgreSQL. For TLS there are files: -tls-ca, and -tls-cert with
// -tls-key.
//
// # Exit status
//
//	the status of COMMAND, or 128 plus the number of the signal that killed it
//	0    success
//	1    no: nothing is there, a condition does not hold, or a question was answered no
//	2    the command line is invalid
//	123  the lock, or with -once leadership, was lost while COMMAND ran
//	124  not obtained within -wait: the lock, leadership, or an item
//	125  the service cannot be reached within 30 s or -wait, or has refused a request
//	126  COMMAND cannot be run
//	127  COMMAND was not found
//	128 plus the number of a signal that ended coordctl while it waited
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit statuses of coordctl besides those of COMMAND.
const (
	exitNo        = 1
	exitUsage     = 2
	exitLost      = 123
	exitLate      = 124
	exitFailed    = 125
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignal    = 128 // plus its number
)

// statuses is their meaning.
var statuses = map[int]string{
	exitNo:        "no: nothing is there, a condition does not hold, or a question was answered no",
	exitUsage:     "the command line, the config file or the environment is invalid",
	exitLost:      "the lock, or with --once leadership, was lost while COMMAND ran",
	exitLate:      "not obtained within --wait",
	exitFailed:    "the service cannot be reached within 30 s or --wait, or has refused a request",
	exitCannotRun: "COMMAND cannot be run",
	exitNotFound:  "COMMAND was not found",
	exitSignal:    "plus the number of a signal that ended coordctl",
}

func main() {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(s) { // nohup
			signal.Notify(signals, s)
		}
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, signals))
}

// run is main without the process.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	t := &tool{stdin: stdin, stdout: stdout, stderr: stderr, signals: signals}
	root := t.root()
	if len(args) == 0 || !strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		args, t.dashed = arrange(root, args)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
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
	return &exit{exitUsage, fmt.Errorf(format+"\nRun coordctl help to see how it is used.", args...)}
}

// say prints a message for the user. An error can quote what other clients have written.
func (t *tool) say(format string, args ...any) {
	lines := strings.Split(fmt.Sprintf("coordctl: "+format, args...), "\n")
	for i, line := range lines {
		lines[i] = visible(line)
	}
	fmt.Fprintln(t.stderr, strings.Join(lines, "\n"))
}
