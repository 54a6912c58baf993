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

	"github.com/go-coord/coord"
)

// do executes the command line.
func (t *tool) do(ctx context.Context) error {
	b, err := t.service()
	if err != nil {
		return err
	}
	if len(t.command) > 0 {
		if err := findCommand(t.command[0]); err != nil {
			return err // before other clients wait for this one
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
	err = t.await(ctx, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		c, err = coord.Open(ctx, b, &coord.Options{Namespace: t.namespace, Logger: t.logger()})
		return err
	})
	if c != nil {
		defer c.Close() // also when a signal has come meanwhile
	}
	if errors.Is(err, coord.ErrInvalid) || errors.Is(err, coord.ErrBadPath) {
		return usage("%w", err)
	}
	if err != nil {
		return err
	}
	switch t.verb {
	case "lock":
		return t.lock(waiting, c)
	case "elect":
		return t.elect(waiting, c)
	case "inspect":
		return t.await(ctx, func(ctx context.Context) error { return t.inspect(ctx, c) })
	case "watch":
		return t.await(ctx, func(ctx context.Context) error { return t.watch(ctx, c) })
	case "queue":
		return t.await(ctx, func(ctx context.Context) error { return t.figures(ctx, c) })
	case "queue put":
		return t.await(waiting, func(ctx context.Context) error { return t.put(ctx, c) })
	case "queue take":
		return t.await(waiting, func(ctx context.Context) error { return t.take(ctx, c) })
	}
	return t.await(ctx, func(ctx context.Context) error { return t.count(ctx, c) })
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
	err := t.await(waiting, func(ctx context.Context) (err error) {
		if t.wait == 0 {
			h, err = m.TryLock(ctx)
		} else {
			h, err = m.Lock(ctx)
		}
		return err
	})
	if err != nil {
		if h != nil {
			h.Release() // granted at the moment of the signal
		}
		return err
	}
	return t.under(h)
}

// elect runs the command while it leads.
func (t *tool) elect(waiting context.Context, c *coord.Client) error {
	e := coord.NewElection(c, t.path, &coord.ElectionOptions{ID: t.id})
	for {
		var term *coord.Term
		err := t.await(waiting, func(ctx context.Context) (err error) {
			term, err = e.Campaign(ctx)
			return err
		})
		if err != nil {
			if term != nil {
				term.Release()
			}
			return err
		}
		err = t.under(term.Hold)
		var x *exit
		if t.once || !errors.As(err, &x) || x.status != exitLost {
			return err
		}
		t.say("%v; campaigning again", x.err)
		waiting = context.Background() // -wait was for the first time
	}
}

// under runs the command under the hold, and releases it when the command has ended.
func (t *tool) under(h *coord.Hold) error {
	env := []string{
		"COORD_TOKEN=" + strconv.FormatInt(h.Token(), 10),
		"COORD_PATH=" + t.path,
		"COORD_NODE=" + h.Path(),
	}
	p, err := startProcess(t.command, env, t.stdin, t.stdout, t.stderr)
	if err != nil {
		h.Release()
		return &exit{exitCannotRun, err}
	}
	t.tend(p, h)
	status := p.status()
	lost := h.Err() // before the release, which ends it too
	if err := h.Release(); err != nil && lost == nil {
		if lost = h.Err(); !errors.Is(lost, coord.ErrLost) {
			t.say("release: %v", err) // the session ends soon, and the lock with it
		}
	}
	switch {
	case errors.Is(lost, coord.ErrLost):
		return &exit{exitLost, fmt.Errorf("%w (the command ended with status %d)", lost, status)}
	case status != 0:
		return &exit{status, nil}
	}
	return nil
}

// tend returns when the process has ended. It forwards signals, and ends the process when the
// hold is lost.
func (t *tool) tend(p *process, h *coord.Hold) {
	for {
		select {
		case <-p.ended:
			return
		case s := <-t.signals:
			p.signal(s)
		case <-h.Done():
			p.signal(syscall.SIGTERM)
			grace := time.NewTimer(t.grace)
			defer grace.Stop()
			select {
			case <-p.ended:
				return
			case <-grace.C:
			}
			p.kill()
			<-p.ended
			return
		}
	}
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
