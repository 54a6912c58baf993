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
	"github.com/go-coord/coord/backend"
)

const (
	runEvery       = time.Second           // the interval of the schedule
	clockTolerance = 10 * time.Millisecond // between the wall clock and that of proc.Now
)

// obeySchedule obeys the commands for a schedule:
//
//	schedule PATH ATTEMPTS  runs the schedule in the background. Each run is reported as running, with the planned time, and
//	                        lasts until the command proceed, or until its context ends. It is then reported as ended, with the
//	                        cause or "ok"
//	proceed                 ends the present run, or the next one
//	create PATH             creates a node under the guard of the latest run; reported as created, with "fenced", another error, or "ok"
func (w *worker) obeySchedule(ctx context.Context, work *sync.WaitGroup, command string) (known bool, err error) {
	f := strings.Fields(command)
	switch {
	case len(f) == 3 && f[0] == "schedule":
		attempts, err := strconv.Atoi(f[2])
		if err != nil {
			return true, err
		}
		w.proceed = make(chan struct{}, 1)
		work.Go(func() { w.schedule(ctx, f[1], attempts) })
	case command == "proceed":
		w.proceed <- struct{}{}
	case len(f) == 2 && f[0] == "create":
		h := w.latest()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		_, err := coord.NewTxn(w.c).Under(h.Guard()).CreateAll(f[1], nil, backend.Persistent).Commit(ctx)
		text := verdict(err)
		if errors.Is(err, coord.ErrFenced) {
			text = "fenced"
		}
		w.say(w.about(h, "created", text))
	default:
		return false, nil
	}
	return true, nil
}

func (w *worker) schedule(ctx context.Context, path string, attempts int) {
	s := coord.NewSchedule(w.c, path, coord.Every(runEvery), &coord.ScheduleOptions{
		ID: w.spec.ID, Missed: coord.MissedAll, MissedLimit: 1000, Attempts: attempts, History: 100,
	})
	err := s.Run(ctx, func(run context.Context, r *coord.Run) error {
		w.mu.Lock()
		w.hold = r.Hold
		w.mu.Unlock()
		l := w.about(r.Hold, "running", fmt.Sprint(r.Planned.UnixMilli()))
		l.Attempt = r.Attempt
		w.say(l)
		text := "ok"
		select {
		case <-w.proceed:
		case <-run.Done():
			text = context.Cause(run).Error()
		}
		w.say(w.about(r.Hold, "ended", text))
		return run.Err()
	})
	if err != nil && ctx.Err() == nil {
		w.say(line{Kind: "failed", Text: err.Error()})
	}
}
