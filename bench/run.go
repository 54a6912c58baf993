package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// graceOfCell is added to the expected time of a run before the run fails. Busy machines are
// slow, and bench must not hang.
const graceOfCell = 60 * time.Second

// A result is a cell with its figures.
type result struct {
	name
	Crash   string            `json:"crash,omitempty"`  // what a consumer's crash does to its item
	Beyond  string            `json:"beyond,omitempty"` // replaces the figures that a peer cannot reach within a limit
	Figures map[metric]figure `json:"figures,omitempty"`
	Error   string            `json:"error,omitempty"`
}

// value returns the median of a metric, and whether there is one.
func (r *result) value(m metric) (float64, bool) {
	f, ok := r.Figures[m]
	return f.Median, ok
}

// A runner runs groups one after the other, and interleaves the cells of each.
type runner struct {
	out    io.Writer // the growing table
	notes  io.Writer // progress
	rounds int
	table  *table
	grace  time.Duration // 0 means graceOfCell

	began    time.Time
	expected time.Duration // time of all planned runs
	done     time.Duration // time of the finished runs
}

// run returns a result for every cell: its figures, or an error. It stops early only when ctx
// ends.
func (r *runner) run(ctx context.Context, groups []*group) ([]*result, error) {
	r.began = time.Now()
	for _, g := range groups {
		for _, c := range g.cells {
			r.expected += time.Duration(r.runsOf(g)) * c.cost
		}
	}
	fmt.Fprintf(r.notes, "%d cells, %d rounds, about %s\n", count(groups), r.rounds, rough(r.expected))
	var results []*result
	for _, g := range groups {
		rs, err := r.group(ctx, g)
		results = append(results, rs...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// roundsOf returns the number of rounds of a group. Exact figures need no median.
func (r *runner) roundsOf(g *group) int {
	if g.exact || g.fewer {
		return (r.rounds + 1) / 2
	}
	return r.rounds
}

// runsOf is roundsOf plus the warm-up rounds.
func (r *runner) runsOf(g *group) int {
	n := r.roundsOf(g)
	if n > 1 {
		n += g.warm
	}
	return n
}

func count(groups []*group) (n int) {
	for _, g := range groups {
		n += len(g.cells)
	}
	return n
}

// group runs the cells of one group. Each round begins with another cell, and every second
// round runs backwards, so that no cell always follows the same one. A group whose rates are
// compared has warm-up rounds that do not count: otherwise a cell would pay for the
// just-in-time compilation in the servers.
func (r *runner) group(ctx context.Context, g *group) ([]*result, error) {
	if g.end != nil {
		defer func() {
			if err := g.end(); err != nil {
				fmt.Fprintf(r.notes, "end of %s: %v\n", g.name, err)
			}
		}()
	}
	rounds := r.roundsOf(g)
	samples := make([][]sample, len(g.cells))
	results := make([]*result, len(g.cells))
	for i, c := range g.cells {
		results[i] = &result{name: c.name, Crash: c.crash}
	}
	for round := rounds - r.runsOf(g); round < rounds; round++ {
		if round < 0 {
			fmt.Fprintf(r.notes, "%s: warming up; %s\n", g.name, r.progress())
		} else {
			fmt.Fprintf(r.notes, "%s: round %d of %d; %s\n", g.name, round+1, rounds, r.progress())
		}
		for _, i := range order(len(g.cells), max(0, round), rounds) {
			c := g.cells[i]
			r.done += c.cost
			if results[i].Error != "" || results[i].Beyond != "" {
				continue
			}
			s, err := r.runCell(ctx, c)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			var beyond beyondError
			if errors.As(err, &beyond) {
				results[i].Beyond = fmt.Sprintf("> %.0f s", beyond.limit.Seconds())
				fmt.Fprintf(r.notes, "%s: %v\n", c.name, err)
				err = nil
			}
			if err != nil {
				results[i].Error = err.Error()
				fmt.Fprintf(r.notes, "FAILED: %s: %v\n", c.name, err)
				continue
			}
			delete(s, mDone)
			if round >= 0 && len(s) > 0 {
				samples[i] = append(samples[i], s)
			}
		}
	}
	for i := range results {
		if results[i].Error == "" {
			results[i].Figures = summarize(samples[i])
		}
	}
	r.table.print(r.out, g, results)
	return results, nil
}

// order is the order of n cells in a round.
func order(n, round, rounds int) []int {
	cells := make([]int, n)
	for k := range cells {
		at := k
		if round%2 == 1 {
			at = n - 1 - k
		}
		cells[k] = (at + round*n/rounds) % n
	}
	return cells
}

var errNoFigures = errors.New("no figures")

// runCell bounds a run. A run that does not end even with its context, because a client knows
// no contexts, is abandoned.
func (r *runner) runCell(ctx context.Context, c *cell) (sample, error) {
	grace, patience := r.grace, r.grace
	if grace == 0 {
		grace, patience = graceOfCell, 10*time.Second
	}
	most := c.most
	if most == 0 {
		most = c.cost + grace
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not done after %v", most))
	defer cancel()
	type outcome struct {
		s   sample
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		s, err := c.run(ctx)
		if err == nil && len(s) == 0 {
			err = errNoFigures
		}
		ended <- outcome{s, err}
	}()
	select {
	case o := <-ended:
		return o.s, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-ended:
		return o.s, o.err
	case <-time.After(patience):
		return nil, context.Cause(ctx)
	}
}

// progress reports how much is done and how long the rest takes at the pace so far.
func (r *runner) progress() string {
	if r.expected == 0 {
		return ""
	}
	part := float64(r.done) / float64(r.expected)
	left := r.expected - r.done
	if spent := time.Since(r.began); part > 0.05 {
		left = time.Duration(float64(spent) * (1 - part) / part)
	}
	return fmt.Sprintf("%.0f %% done, about %s left", 100*part, rough(left))
}

// rough rounds a time for the reader.
func rough(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}
