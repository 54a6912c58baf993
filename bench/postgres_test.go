package main

import (
	"io"
	"slices"
	"strings"
	"testing"

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
