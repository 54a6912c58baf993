package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// Every cell with PostgreSQL yields its figures, and the queues of both libraries lose nothing.
func TestPostgres_EveryCellYieldsFigures(t *testing.T) {
	pgtest.Require(t)
	e := &env{root: "/bench", direct: &place{}, counted: &place{}}
	defer e.Close()
	x, err := startPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.atEnd(x.Close)
	e.atEnd(e.counted.Close)
	if _, known := x.processors(); !known {
		t.Error("the processor time of the server is not known")
	}
	groups := postgresGroups(e, &peers{postgres: x}, tinySizes)
	for _, g := range groups {
		g.cells = slices.DeleteFunc(g.cells, func(c *cell) bool { return c.Where != onPostgres })
	}
	var out strings.Builder
	r := &runner{out: &out, notes: io.Discard, rounds: tinySizes.rounds, table: &table{}}
	results, err := r.run(t.Context(), groups)
	if err != nil {
		t.Fatal(err)
	}
	const references, cells = 4 * 2, 2*4 + 3 + 2*3 + 4 + 2*4 + 3 + 3
	if len(results) != references+cells {
		t.Errorf("%d cells on PostgreSQL, want %d", len(results), references+cells)
	}
	for _, x := range results {
		switch {
		case x.Error != "":
			t.Errorf("%s: %s", x.name, x.Error)
		case x.Group == pgNear:
			checkFigures(t, x, mP50, mCPU)
		case x.Group == pgHandOver: // fewer rounds
			if x.Figures[mRoundTrips].Min <= 0 {
				t.Errorf("%s: %+v", x.name, x.Figures)
			}
		default:
			checkFigures(t, x, mRate, mCPU, mServerCPU)
		}
	}
	for _, want := range []string{"times " + whatFlush, "times " + whatTrip} {
		if strings.Count(out.String(), want) != 4 {
			t.Errorf("the tables lack %q:\n%s", want, out.String())
		}
	}
	t.Log(out.String())
}

// Requests to a PostgreSQL server are counted exactly.
func TestPostgres_CountsRequests(t *testing.T) {
	pgtest.Require(t)
	x, err := startPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	p, err := newDistantPlace("/bench", []string{"127.0.0.1:1"}, countedOneWay)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conns, err := p.conns(ctx, x.coord(), 1)
	if err != nil {
		t.Fatal(err)
	}
	m := coord.NewMutex(conns[0].(*coordConn).c, "/l", nil)
	n := coord.NewCounter(conns[0].(*coordConn).c, "/n")
	var h *coord.Hold
	steps := []step{
		func(ctx context.Context) (err error) { h, err = m.Lock(ctx); return err },
		func(context.Context) error { return h.Release() },
		func(ctx context.Context) error { _, err := n.Add(ctx, 1); return err },
	}
	for _, do := range steps { // makes the directories
		if err := do(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s, err := countCycles(ctx, p, []string{"Lock", "Release", "Add"}, steps, 3)
	if err != nil {
		t.Fatal(err)
	}
	// A notification of each of the three commits comes back. On a busy machine the watch of a hold can be armed, which is a request more.
	if s[mTripsOf+"Lock"] != 1 || s[mTripsOf+"Release"] != 1 || s[mTripsOf+"Add"] != 2 || s[mRequests] < 4 || s[mRequests] > 5 || s[mEvents] != 3 || s[mBytesUp] <= 0 || s[mBytesDown] <= 0 {
		t.Errorf("the costs are %v", s)
	}
}
