package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord/internal/layout"
)

// Schedule is the state of a coord.Schedule.
type Schedule struct {
	Paused  bool           `json:"paused"`
	Leader  string         `json:"leader,omitempty"`  // the id of the process that leads
	Session string         `json:"session,omitempty"` // of its node; "": no process leads
	Waiting int            `json:"waiting"`           // processes that can lead next
	Asked   []time.Time    `json:"asked,omitempty"`   // runs that were asked for, and are not claimed
	Runs    []ScheduledRun `json:"runs"`              // those that last, and those that have ended last, in the order of their claims

	// Unread says why the state is not known, such as a missing permission.
	Unread string `json:"unread,omitempty"`
}

// A ScheduledRun is a run of a coord.Schedule. Its Outcome is empty while it lasts.
type ScheduledRun struct {
	Node    string    `json:"node"` // the name of the node of the claim, which exists while the run lasts
	Planned time.Time `json:"planned"`
	Attempt int       `json:"attempt"`
	Asked   bool      `json:"asked,omitempty"`
	ID      string    `json:"id,omitempty"` // of the process
	Began   time.Time `json:"began"`
	Took    string    `json:"took,omitempty"` // such as "1.5s"
	Outcome string    `json:"outcome,omitempty"`
	Error   string    `json:"error,omitempty"`
	Again   bool      `json:"again,omitempty"` // another attempt follows
}

// schedule describes the nodes of a coord.Schedule.
func (x *inspector) schedule(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed[layout.StateName] {
		return nil
	}
	r, err := x.get(ctx, x.dir+"/"+layout.StateName, true)
	if err != nil || r.gone {
		return err
	}
	led := k.fixed[layout.LeaderName]
	k.claim(layout.StateName, layout.LeaderName)
	k.foreign = slices.DeleteFunc(k.foreign, layout.IsRun)
	in := &Schedule{Runs: []ScheduledRun{}, Unread: r.unread}
	x.in.Schedule = in
	if st, err := layout.ParseScheduleState(r.data); err == nil {
		in.Paused = st.Paused
		for _, at := range st.Asked {
			in.Asked = append(in.Asked, utc(at))
		}
		for i := range st.Runs {
			r := &st.Runs[i]
			took := ""
			if !r.Lasts() {
				took = (time.Duration(r.Took) * time.Millisecond).String()
			}
			in.Runs = append(in.Runs, ScheduledRun{
				Node: r.Node, Planned: utc(r.Planned), Attempt: r.Attempt, Asked: r.Asked, ID: r.ID, Began: utc(r.Began),
				Took: took, Outcome: r.Outcome, Error: r.Error, Again: r.Again,
			})
		}
	} else if r.unread == "" && !r.skip {
		x.in.note("the data of %s is not the state of a schedule", layout.StateName)
	}
	if led {
		if err := x.scheduleLeader(ctx, in); err != nil {
			return err
		}
	}
	add("schedule", in.summary())
	return nil
}

// scheduleLeader reads the queue of the candidates.
func (x *inspector) scheduleLeader(ctx context.Context, in *Schedule) error {
	dir := x.dir + "/" + layout.LeaderName
	names, _, err := x.list(ctx, dir)
	if err != nil {
		return err
	}
	queue := layout.LatchLine.Order(names)
	if len(queue) == 0 {
		return nil
	}
	in.Waiting = len(queue) - 1
	r, err := x.get(ctx, dir+"/"+queue[0].Name, true)
	if err != nil || r.gone {
		return err
	}
	in.Session = hexSession(r.stat)
	_, own := layout.OpenEnvelope(r.data)
	in.Leader = layout.OpenCandidate(own).ID
	return nil
}

func (in *Schedule) summary() string {
	var parts []string
	if in.Paused {
		parts = append(parts, "paused")
	}
	switch {
	case in.Session == "":
		parts = append(parts, "no process leads")
	case in.Waiting == 0:
		parts = append(parts, "1 process")
	default:
		parts = append(parts, fmt.Sprintf("%d processes", in.Waiting+1))
	}
	lasting, last := 0, ""
	for _, r := range in.Runs {
		if r.Outcome == "" {
			lasting++
		} else {
			last = "last: " + printable(shorten(r.Outcome))
		}
	}
	if lasting > 0 {
		parts = append(parts, plural(lasting, "run")+" under way")
	}
	if n := len(in.Asked); n > 0 {
		parts = append(parts, plural(n, "run")+" asked for")
	}
	if last != "" {
		parts = append(parts, last)
	}
	return strings.Join(parts, ", ")
}

// schedule writes the runs, the latest first.
func (p *page) schedule(in *Schedule) {
	if in == nil {
		return
	}
	if in.Session != "" {
		p.line("  led by %s, session %s", strconv.Quote(shorten(in.Leader)), in.Session)
	}
	rows := [][]string{{"planned", "attempt", "by", "began", "took", "outcome", "asked", "error"}}
	for _, r := range slices.Backward(in.Runs) {
		outcome, asked := "under way", ""
		if r.Outcome != "" {
			outcome = printable(shorten(r.Outcome))
		}
		if r.Again {
			outcome += ", to be repeated"
		}
		if r.Asked {
			asked = "by an operator"
		}
		failure := ""
		if r.Error != "" {
			failure = strconv.Quote(shorten(r.Error))
		}
		rows = append(rows, []string{stamp(r.Planned), strconv.Itoa(r.Attempt), printable(r.ID), stamp(r.Began), r.Took, outcome, asked, failure})
	}
	p.table(rows...)
	if in.Unread != "" {
		p.line("  state: %s", in.Unread)
	}
}
