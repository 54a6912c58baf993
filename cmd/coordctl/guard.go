package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/zookeeper"
)

// endLimit bounds the requests that end a session: an orchestrator waits for the exit of guard before it starts COMMAND again.
const endLimit = 2 * time.Second

// guardCommand returns the verb guard.
func (t *tool) guardCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "guard", runs: true, bare: func() bool { return t.listen != "" }, short: "run a command, and end its sessions when it has died",
		long: `
It runs COMMAND, and ends the sessions of each process that reports them and dies: kill -9, a crash, exit without Close, no
memory. So its locks are free at once, not after the session timeout. A process reports its sessions if its backend
has the option Reporter: supervisor.FromEnv(). The servers and credentials of guard are its own, those of coordctl.

It passes signals, standard input, output and error, and the exit status on, and reaps orphans, so it can be the entry point of a
container. When COMMAND has ended it kills the other processes of its process group, and as process 1 all others, and ends
within about two seconds and --delay. A signal in that time changes nothing, since it can be the signal that has ended COMMAND. A
second one ends guard at once: then the sessions that have not ended last for their timeout.

At a terminal COMMAND stays in the process group of guard, and guard kills no other process of it. The terminal or the shell sends
SIGINT, SIGQUIT and SIGHUP to both, so guard does not pass them on. If the terminal stops COMMAND (^Z, or input in the
background), guard stops too, and the shell continues both. While guard is stopped it ends no session.

With --listen it runs no COMMAND, but ends the sessions of the processes that connect to the socket at that path: those with
COORD_SUPERVISOR=unix:PATH in their environment, and of the same user. So it can run in a container beside theirs, and survives
when all of theirs is killed. After SIGTERM it ends when no session is left, after a second signal at once. It replaces a socket that
nothing listens on. Meanwhile it has locked the file PATH.lock, which it leaves there. If it cannot listen, the exit status is 125.
Of each process it keeps the latest 64 sessions and 8 connections, and of all as many as it has descriptors for.

What the dead process has written to other services can arrive after the next holder has begun. Let them check a fencing
token. --delay makes that rarer.

The death of a process is proven by its pidfd (Linux 6.5). On older kernels only COMMAND itself counts, and --listen is refused. On
other systems it only runs COMMAND. If guard is killed, sessions end after their timeout, as without it.`,
		example: `
coordctl guard -- echo my sessions end with me
coordctl guard --delay 500ms -- sh -c 'echo they would end half a second later'`,
		exits: []int{exitCannotRun, exitNotFound},
		check: t.checkGuard,
		local: func(cmd *cobra.Command) error { return t.guard(cmd.Context()) },
	})
	cmd.Flags().StringVar(&t.listen, "listen", "", "run no COMMAND, but listen at this `path`")
	cmd.Flags().DurationVar(&t.endDelay, "delay", 0, "the `time` between the death of a process and the end of its sessions")
	return cmd
}

func (t *tool) checkGuard() error {
	switch {
	case t.listen == "" && len(t.dashed) == 0:
		return errors.New("guard needs a command after --, or --listen")
	case t.memory:
		return errors.New("--memory has no session of another process")
	case len(t.hosts()) == 0:
		return errors.New("no servers: give --servers host:port,…")
	case t.endDelay < 0:
		return fmt.Errorf("--delay %v is negative", t.endDelay)
	}
	return nil
}

// ender returns the function that ends the session of a dead process.
func (t *tool) ender(ctx context.Context) (func(backend.Ticket), error) {
	cfg, err := t.tlsConfig()
	if err != nil {
		return nil, err
	}
	return func(ticket backend.Ticket) {
		if ticket.Service != t.backend {
			t.say("%v was reported, but this guard ends sessions of %s: it ends after its timeout", ticket, t.backend)
			return
		}
		select {
		case <-time.After(t.endDelay):
		case <-ctx.Done():
			return
		}
		limit := endLimit
		if ticket.Timeout > 0 {
			limit = min(limit, ticket.Timeout/2)
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := t.end(ctx, cfg, ticket); err != nil {
			t.say("a session of a dead process ends after its timeout, %v: %v", ticket.Timeout, err)
			return
		}
		if t.verbose {
			t.say("ended %v, whose process has died", ticket)
		}
	}, nil
}

func (t *tool) end(ctx context.Context, cfg *tls.Config, ticket backend.Ticket) error {
	switch t.backend {
	case "postgres":
		return postgres.End(ctx, t.connString(), t.postgresOptions(cfg), ticket)
	case "etcd":
		return etcd.End(ctx, t.hosts(), t.etcdOptions(cfg), ticket)
	}
	return zookeeper.End(ctx, t.hosts(), t.zookeeperOptions(cfg), ticket)
}
