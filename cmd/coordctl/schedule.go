package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/inspect"
)

// scheduleCommand returns the verb schedule and those below it.
func (t *tool) scheduleCommand() *cobra.Command {
	return t.command(verb{
		name: "schedule", short: "list, start and pause the runs of a schedule",
		below: []*cobra.Command{
			t.command(verb{
				name: "list", words: "PATH", short: "list the runs of a schedule, the latest first",
				long:    `It shows the runs that last and those that ended last, with their outcomes.`,
				example: `coordctl schedule list /jobs/report`,
				exits:   []int{exitNo},
				do:      t.listRuns,
			}),
			t.command(verb{
				name: "run", words: "PATH", short: "ask the leader of a schedule for a run now, beside the planned times",
				long: `
It does not wait for the run. The leader begins it as soon as the schedule allows, also while the
schedule is paused. If no process leads, the next leader begins it.`,
				example: `coordctl schedule run /jobs/report`,
				exits:   []int{exitNo},
				do:      t.runNow,
			}),
			t.command(verb{
				name: "pause", words: "PATH", short: "let no further planned time of a schedule run",
				long:    `Runs that last go on.`,
				example: `coordctl schedule pause /jobs/report`,
				exits:   []int{exitNo},
				do:      t.pauses(true),
			}),
			t.command(verb{
				name: "resume", words: "PATH", short: "end a pause",
				long:    `Planned times that passed in the pause are left out.`,
				example: `coordctl schedule resume /jobs/report`,
				exits:   []int{exitNo},
				do:      t.pauses(false),
			}),
		},
	})
}

// inspectSchedule returns the report of the schedule at the path. Without a schedule there it fails, so no verb creates one by mistake.
func (t *tool) inspectSchedule(ctx context.Context, c *coord.Client) (*inspect.Report, error) {
	in, err := inspect.Path(ctx, c, t.path, nil)
	if err == nil && in.Schedule == nil {
		err = &exit{exitNo, fmt.Errorf("%s is no schedule; found %s: %s", t.path, in.Recipe, in.Summary)}
	}
	return in, err
}

func (t *tool) listRuns(ctx context.Context, c *coord.Client) error {
	in, err := t.inspectSchedule(ctx, c)
	if err != nil {
		return err
	}
	rows := [][]string{{"planned", "attempt", "by", "began", "took", "outcome", "error"}}
	for _, at := range slices.Backward(in.Schedule.Asked) {
		rows = append(rows, []string{stamp(at), "-", "-", "-", "-", "asked for", "-"})
	}
	for _, r := range slices.Backward(in.Schedule.Runs) {
		outcome := r.Outcome
		switch {
		case outcome == "":
			outcome = "under way"
		case r.Again:
			outcome += ", to be repeated"
		}
		if r.Asked {
			outcome += ", asked for"
		}
		failure := "-"
		if r.Error != "" {
			failure = strconv.Quote(r.Error)
		}
		rows = append(rows, []string{stamp(r.Planned), strconv.Itoa(r.Attempt), dash(r.ID), stamp(r.Began), dash(r.Took), outcome, failure})
	}
	text := in.Summary + "\n"
	if runs := table(rows); runs != "" {
		text += "\n" + runs
	}
	return t.report(ctx, in.Schedule, text)
}

// askedRun is a run that was asked for, as JSON.
type askedRun struct {
	Path    string    `json:"path"`
	Planned time.Time `json:"planned"`
}

func (t *tool) runNow(ctx context.Context, c *coord.Client) error {
	in, err := t.inspectSchedule(ctx, c)
	if err != nil {
		return err
	}
	at, err := coord.NewSchedule(c, t.path, nil, nil).RunNow(ctx)
	if err != nil {
		return err
	}
	if in.Schedule.Session == "" && !t.json {
		t.say("no process leads %s: the next one will run it", t.path)
	}
	return t.print(ctx, askedRun{t.path, at.UTC()}, fmt.Sprintf("%s: a run is asked for, planned for %s\n", t.path, stamp(at)))
}

// pauseState is the state of a schedule after pause or resume, as JSON.
type pauseState struct {
	Path   string `json:"path"`
	Paused bool   `json:"paused"`
}

func (t *tool) pauses(pause bool) func(ctx context.Context, c *coord.Client) error {
	return func(ctx context.Context, c *coord.Client) error {
		if _, err := t.inspectSchedule(ctx, c); err != nil {
			return err
		}
		s := coord.NewSchedule(c, t.path, nil, nil)
		do := s.Resume
		if pause {
			do = s.Pause
		}
		if err := do(ctx); err != nil {
			return err
		}
		return t.print(ctx, pauseState{t.path, pause}, "")
	}
}
