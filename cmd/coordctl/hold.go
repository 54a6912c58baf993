package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
)

// lockCommand returns the verb lock.
func (t *tool) lockCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "lock", words: "PATH", runs: true, short: "run a command under a lock",
		long: `
It waits for the mutex at PATH, runs COMMAND, and releases the mutex when COMMAND has ended. With
--wait 0 it does not wait. COORD_TOKEN in the environment of COMMAND is the fencing token, COORD_PATH is PATH, and
COORD_NODE the node of the hold. If the lock is lost, COMMAND gets SIGTERM, and SIGKILL after
--grace. If another client asks for the lock (coordctl revoke), COMMAND gets --revoke-signal, and SIGKILL
after --revoke-grace. The lock is released when COMMAND has ended, and the exit status is that of COMMAND.`,
		example: `
coordctl lock --wait 1m /locks/backup -- backup.sh --full
coordctl lock --wait 0 /locks/report -- echo it was free`,
		exits: append([]int{exitLate}, runExits...),
		do:    t.lock,
	})
	t.runFlags(cmd)
	return cmd
}

// electCommand returns the verb elect.
func (t *tool) electCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "elect", words: "PATH", runs: true, bare: func() bool { return t.resign }, short: "run a command for as long as it leads",
		long: `
It campaigns in the election at PATH, as --id, and runs COMMAND when it leads. If leadership is
lost COMMAND is ended, as by lock, and coordctl campaigns again unless --once is given. When
COMMAND ends by itself coordctl resigns and ends.

A leader that is asked to resign ends COMMAND as lock does, resigns, and campaigns again, behind all other
candidates, unless --once is given. With --resign coordctl runs no COMMAND but asks the leader at PATH to
resign, and waits until its term has ended, or --wait has passed: a planned hand-over. It is what revoke does
without --force, for elections only. If nothing leads, the exit status is 1.`,
		example: `
coordctl elect /leaders/report -- echo I lead
coordctl elect --resign /leaders/report --reason upgrade --wait 10s`,
		exits: append([]int{exitNo, exitLate}, runExits...),
		no0:   "a campaign takes a moment",
		do:    t.elect,
	})
	t.runFlags(cmd)
	cmd.Flags().BoolVar(&t.once, "once", false, "do not campaign again")
	cmd.Flags().BoolVar(&t.resign, "resign", false, "run no COMMAND, but ask the leader to resign")
	t.requestFlags(cmd)
	return cmd
}

var runExits = []int{exitLost, exitCannotRun, exitNotFound}

// runFlags defines the flags of verbs that run a command.
func (t *tool) runFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&t.grace, "grace", 300*time.Millisecond, "the time between SIGTERM and SIGKILL when the lock is lost, at most "+mostGrace.String())
	t.revokeSignal = signalFlag(syscall.SIGTERM) // first: Var notes the default for the help
	cmd.Flags().Var(&t.revokeSignal, "revoke-signal", "the `signal` that COMMAND gets when another client asks for the lock: TERM, INT, HUP, QUIT, a number, or none, with which the request is ignored")
	cmd.Flags().DurationVar(&t.revokeGrace, "revoke-grace", 10*time.Second, "the time between that signal and SIGKILL; 0 for no bound")
	cmd.Flags().StringVar(&t.id, "id", defaultID(), "the `name` that inspect shows")
}

// connect opens a client, and calls f with it and a context that ends after --wait.
func (t *tool) connect(ctx context.Context, f func(waiting context.Context, c *coord.Client) error) error {
	b, err := t.service()
	if err != nil {
		return err
	}
	if len(t.dashed) > 0 {
		if err := findCommand(t.dashed[0]); err != nil {
			return err // before other clients wait for this one
		}
	}
	if t.before != nil {
		if err := t.await(ctx, t.before); err != nil {
			return err
		}
	}
	var cancel context.CancelFunc
	waiting := ctx // bounds the wait
	limit := openLimit
	if t.wait > 0 {
		waiting, cancel = context.WithTimeoutCause(ctx, t.wait, errLate)
		defer cancel()
		limit = t.wait
	}
	var c *coord.Client
	stop := t.progress("connecting to %s", t.about())
	if t.before == nil { // else it has told
		t.unreached.connecting(func(why any) { t.say("no server can be reached yet, trying for %v: %v", limit, why) })
	}
	err = t.await(ctx, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		c, err = coord.Open(ctx, b, &coord.Options{Namespace: t.namespace, Logger: t.logger(), Trace: onWait})
		return err
	})
	stop()
	t.unreached.connecting(nil)
	if c != nil {
		defer c.Close() // also when a signal has come meanwhile
	}
	if errors.Is(err, coord.ErrInvalid) || errors.Is(err, coord.ErrBadPath) {
		return usage("%w", err)
	}
	if err != nil {
		return err
	}
	return f(waiting, c)
}

// waitAnew returns ctx with --wait counted from now, and more added to it.
func (t *tool) waitAnew(ctx context.Context, more time.Duration) (context.Context, context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	if t.wait <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, t.wait+more, errLate)
}

var errLate = errors.New("not obtained in time")

// await runs f, whose context ends on a signal. The error then names the signal.
func (t *tool) await(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var err error
	select {
	case err = <-done:
	case s := <-t.signals:
		cancel(fmt.Errorf("%v while waiting", s))
		<-done
		return interrupted(s)
	}
	var e *exit
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, errLate) || errors.Is(err, coord.ErrLocked) || errors.Is(err, coord.ErrEmpty) {
		return &exit{exitLate, fmt.Errorf("%s: %w", t.path, errors.Join(errLate, hideContext(err)))}
	}
	return err
}

// hideContext drops from err the parts that only repeat that the time is over.
func hideContext(err error) error {
	if errors.Is(err, errLate) {
		return nil
	}
	return err
}

func interrupted(s os.Signal) error {
	number, _ := s.(syscall.Signal)
	return &exit{exitSignal + int(number), fmt.Errorf("%v", s)}
}

// lock runs the command under the lock.
func (t *tool) lock(waiting context.Context, c *coord.Client) error {
	m := coord.NewMutex(c, t.path, &coord.MutexOptions{ID: t.id})
	var h *coord.Hold
	stop := t.progress("waiting for the lock %s", t.path)
	err := t.await(waiting, func(ctx context.Context) (err error) {
		if t.wait == 0 {
			h, err = m.TryLock(ctx)
		} else {
			h, err = m.Lock(ctx)
		}
		return err
	})
	stop()
	if err != nil {
		if h != nil {
			h.Release() // granted at the moment of the signal
		}
		return err
	}
	_, err = t.under(h)
	return err
}

// elect runs the command while it leads.
func (t *tool) elect(waiting context.Context, c *coord.Client) error {
	if t.resign {
		return t.revoke(waiting, c)
	}
	e := coord.NewElection(c, t.path, &coord.ElectionOptions{ID: t.id})
	for {
		var term *coord.Term
		stop := t.progress("waiting to lead %s", t.path)
		err := t.await(waiting, func(ctx context.Context) (err error) {
			term, err = e.Campaign(ctx)
			return err
		})
		stop()
		if err != nil {
			if term != nil {
				term.Release()
			}
			return err
		}
		resigned, err := t.under(term.Hold)
		var x *exit
		switch {
		case t.once:
			return err
		case errors.As(err, &x) && x.status == exitLost:
			t.say("%v; campaigning again", x.err)
		case resigned:
			t.say("%s: resigned; campaigning again", t.path)
		default:
			return err
		}
		waiting = context.Background() // -wait was for the first time
	}
}

// under runs the command under the hold, and releases it when the command has ended. It reports whether the
// command was ended since another client has asked for the hold.
func (t *tool) under(h *coord.Hold) (revoked bool, err error) {
	env := []string{
		"COORD_TOKEN=" + strconv.FormatInt(h.Token(), 10),
		"COORD_PATH=" + t.path,
		"COORD_NODE=" + h.Path(),
	}
	p, err := startProcess(t.dashed, env, t.stdin, t.stdout, t.stderr)
	if err != nil {
		h.Release()
		return false, &exit{exitCannotRun, err}
	}
	revoked = t.tend(p, h)
	status := p.status()
	lost := h.Err() // before the release, which ends it too
	if err := h.Release(); err != nil && lost == nil {
		if lost = h.Err(); !errors.Is(lost, coord.ErrLost) {
			t.say("the release has failed, the lock ends with the session: %v", err) // the session ends soon, and the lock with it
		}
	}
	switch {
	case errors.Is(lost, coord.ErrLost):
		return revoked, &exit{exitLost, fmt.Errorf("%w (the command ended with status %d)", lost, status)}
	case status != 0:
		return revoked, &exit{status, nil}
	}
	return revoked, nil
}

// tend returns when the process has ended. It forwards signals, and ends the process when the
// hold is lost, or when another client requests its release. It reports whether the latter, and no signal to coordctl, has ended
// the process.
func (t *tool) tend(p *process, h *coord.Hold) (revoked bool) {
	request := h.Revoked()
	if t.revokeSignal == 0 {
		request = nil
	}
	var late <-chan time.Time
	signalled := false
	for {
		select {
		case <-p.ended:
			return revoked && !signalled
		case s := <-t.signals:
			p.signal(s)
			signalled = true
		case <-request:
			request, revoked = nil, true
			t.say("%s: %s; sending %v to the command", t.path, requestText(h), syscall.Signal(t.revokeSignal))
			p.signal(syscall.Signal(t.revokeSignal))
			if t.revokeGrace > 0 {
				grace := time.NewTimer(t.revokeGrace)
				defer grace.Stop()
				late = grace.C
			}
		case <-late:
			t.say("%s: the command has not ended within %v, killing it", t.path, t.revokeGrace)
			p.kill()
		case <-h.Done():
			p.signal(syscall.SIGTERM)
			grace := time.NewTimer(t.grace)
			defer grace.Stop()
			select {
			case <-p.ended:
				return revoked && !signalled
			case <-grace.C:
			}
			p.kill()
			<-p.ended
			return revoked && !signalled
		}
	}
}

// requestText says which client asks for a hold, and why.
func requestText(h *coord.Hold) string {
	r, _ := h.Revocation()
	text := "another client requests its release"
	if r.By != "" {
		text = printable(r.By) + " requests its release"
	}
	if r.Reason != "" {
		text += " (" + printable(r.Reason) + ")"
	}
	return text
}

// signalFlag is a signal. Zero means none.
type signalFlag syscall.Signal

// named are the signals that have names on each system.
var named = map[string]signalFlag{
	"none": 0, "HUP": signalFlag(syscall.SIGHUP), "INT": signalFlag(syscall.SIGINT), "QUIT": signalFlag(syscall.SIGQUIT),
	"TERM": signalFlag(syscall.SIGTERM), "KILL": signalFlag(syscall.SIGKILL),
}

func (f *signalFlag) Type() string { return "signal" }

func (f *signalFlag) String() string {
	for name, n := range named {
		if n == *f {
			return name
		}
	}
	return strconv.Itoa(int(*f))
}

func (f *signalFlag) Set(s string) error {
	if n, ok := named[strings.TrimPrefix(s, "SIG")]; ok {
		*f = n
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 64 {
		return errors.New("want TERM, INT, HUP, QUIT, KILL, a number from 0 to 64, or none")
	}
	*f = signalFlag(n)
	return nil
}

// findCommand returns an error if the command cannot be run.
func findCommand(name string) error {
	_, err := exec.LookPath(name)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return &exit{exitNotFound, fmt.Errorf("%s: command not found", strings.ToValidUTF8(name, "?"))}
	}
	return &exit{exitCannotRun, err}
}
