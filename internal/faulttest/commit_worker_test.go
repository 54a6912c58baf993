//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
)

// The reports of a worker in transactions. The path of a line is that of the record, its
// token the zxid of the commit that made the transaction.
//
//	prepare, commit, abort  a callback was called, with the site; reported before anything else
//	proposing               repeated if it is not known whether the transaction was made
//	told                    "commit" or "abort": a Propose or Recover has returned it
//	recovered               Recover has returned
//
// The commands:
//
//	serve PATH SITE VOTE          serves a site that votes yes or no
//	propose PATH ID SITES MILLIS  proposes, with the deadline after so many milliseconds
//	recover PATH
//
// obeyCommit reports whether the command is one of these.
func (w *worker) obeyCommit(ctx context.Context, work *sync.WaitGroup, command string) bool {
	c := strings.Fields(command)
	var do func(ctx context.Context) error
	switch {
	case len(c) == 4 && c[0] == "serve":
		do = func(ctx context.Context) error { return w.serveSite(ctx, c[1], c[2], c[3]) }
	case len(c) == 5 && c[0] == "propose":
		do = func(ctx context.Context) error { return w.propose(ctx, c[1], c[2], strings.Split(c[3], ","), c[4]) }
	case len(c) == 2 && c[0] == "recover":
		do = func(ctx context.Context) error { return w.recover(ctx, c[1]) }
	default:
		return false
	}
	work.Go(func() {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			w.say(line{Kind: "failed", Text: err.Error()})
		}
	})
	return true
}

func recordOf(path, id string) string { return path + "/tx/" + id }

func payloadOf(id string) string { return "payload of " + id }

func (w *worker) serveSite(ctx context.Context, path, site, vote string) error {
	called := func(kind string, tx coord.Branch[string]) error {
		w.say(line{Kind: kind, Path: recordOf(path, tx.ID), Token: tx.Zxid, Text: site})
		if !tx.NoPayload && tx.Payload != payloadOf(tx.ID) || tx.NoPayload && kind != "abort" || tx.Site != site {
			w.say(line{Kind: "failed", Text: fmt.Sprintf("%s of %+v", kind, tx)})
		}
		return nil
	}
	return coord.NewParticipant(w.c, path, site, coord.Handler[string]{
		Prepare: func(_ context.Context, tx coord.Branch[string]) error {
			if err := called("prepare", tx); err != nil || vote == "yes" {
				return err
			}
			return errors.New("not here")
		},
		Commit: func(_ context.Context, tx coord.Branch[string]) error { return called("commit", tx) },
		Abort:  func(_ context.Context, tx coord.Branch[string]) error { return called("abort", tx) },
	}).Serve(ctx)
}

func (w *worker) propose(ctx context.Context, path, id string, sites []string, millis string) error {
	n, err := strconv.Atoi(millis)
	if err != nil {
		return err
	}
	p := coord.Proposal[string]{ID: id, Sites: sites, Payload: payloadOf(id), Deadline: time.Now().Add(time.Duration(n) * time.Millisecond)}
	for {
		w.say(line{Kind: "proposing", Path: recordOf(path, id)})
		d, err := coord.NewCoordinator(w.c, path, &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved}).Propose(ctx, p)
		if errors.Is(err, coord.ErrUncertain) {
			continue // as documented at Propose
		}
		if err != nil {
			return err
		}
		w.told(path, d)
		return nil
	}
}

func (w *worker) recover(ctx context.Context, path string) error {
	list, err := coord.NewCoordinator[string](w.c, path, nil).Recover(ctx)
	for _, d := range list {
		w.told(path, d)
	}
	if err != nil {
		return err
	}
	w.say(line{Kind: "recovered", Path: path})
	return nil
}

func (w *worker) told(path string, d coord.Decision) {
	outcome := "abort"
	if d.Commit {
		outcome = "commit"
	}
	w.say(line{Kind: "told", Path: recordOf(path, d.ID), Token: d.Zxid, Text: outcome})
}
