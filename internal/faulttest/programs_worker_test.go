//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-coord/coord"
)

// Small programs as users write them. The reports of a worker that runs one:
//
//	running      a step of the work has begun: a run of the job, a handler, a write to a shard
//	ran          the service has taken the step, in the commit Zxid
//	refused      the service has not, with the error
//	served       the program has ended, with the error or "ok"
//
// The commands:
//
//	job PATH       a leader that counts the runs of a job in the node PATH/runs, under its Guard
//	jobs QUEUE     a service that works on a queue with MaxAttempts 1 and is stopped by SIGTERM.
//	               Its handlers do not finish before that.
//	pieces PATH N  a member of N shards that writes the node PATH/<index> under its Guard
func (w *worker) obeyProgram(ctx context.Context, work *sync.WaitGroup, command string) (known bool, err error) {
	f := strings.Fields(command)
	var program func(context.Context) error
	switch {
	case len(f) == 2 && f[0] == "job":
		program = func(ctx context.Context) error { return w.job(ctx, f[1]) }
	case len(f) == 2 && f[0] == "jobs":
		stopped, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
		program = func(context.Context) error {
			defer stop()
			return w.jobs(stopped, f[1])
		}
	case len(f) == 3 && f[0] == "pieces":
		n, err := strconv.Atoi(f[2])
		if err != nil {
			return true, err
		}
		program = func(ctx context.Context) error { return w.pieces(ctx, f[1], n) }
	default:
		return false, nil
	}
	work.Go(func() {
		err := program(ctx)
		if ctx.Err() == nil {
			w.say(line{Kind: "served", Text: verdict(err)})
		}
	})
	return true, nil
}

func (w *worker) job(ctx context.Context, path string) error {
	e := coord.NewElection(w.c, path+"/leader", &coord.ElectionOptions{ID: w.spec.ID})
	runs := coord.NewValue[int](w.c, path+"/runs", nil)
	return e.Run(ctx, func(ctx context.Context, t *coord.Term) error {
		for {
			last, err := runs.Get(ctx) // zero at the first run
			if err != nil && last.Czxid != 0 {
				return err
			}
			run := w.about(t.Hold, "running", fmt.Sprint(last.Value+1))
			w.say(run)
			res, err := coord.NewTxn(w.c).Under(t.Guard()).Add(runs.SetOp(last.Value + 1)).Commit(ctx)
			w.step(run, res, err)
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(10 * time.Millisecond): // until the next run
			}
		}
	})
}

func (w *worker) jobs(ctx context.Context, queue string) error {
	q := coord.NewQueue(w.c, queue, &coord.QueueOptions[string]{Codec: coord.Text(), MaxAttempts: 1, Prefetch: 2})
	return q.Work(ctx, 3, func(_ context.Context, it *coord.Item[string]) error {
		l := w.about(it.Hold, "running", "")
		l.Items, l.Attempt = []queued{{it.Value, it.ID}}, it.Attempt
		w.say(l)
		<-ctx.Done()
		return ctx.Err()
	})
}

func (w *worker) pieces(ctx context.Context, path string, n int) error {
	return coord.NewShards(w.c, path, n, &coord.ShardsOptions{ID: w.spec.ID}).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
		for ctx.Err() == nil {
			l := w.about(sh.Hold, "running", fmt.Sprint(sh.Index))
			w.say(l)
			// The write does not ask whether ctx has ended meanwhile: the service does.
			res, err := coord.NewTxn(w.c).Under(sh.Guard()).Set(fmt.Sprintf("/data%s/%d", path, sh.Index), nil).Commit(context.WithoutCancel(ctx))
			w.step(l, res, err)
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	})
}

// step reports what became of a step that was reported as running.
func (w *worker) step(l line, res []coord.TxnResult, err error) {
	l.At = 0
	if err != nil {
		l.Kind, l.Text = "refused", l.Text+" "+err.Error()
	} else {
		l.Kind, l.Zxid = "ran", res[0].Zxid
	}
	w.say(l)
}
