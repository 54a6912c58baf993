package recipetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// The cause is data of a node that a Nack creates anyway: one commit of the same two operations.
func TestQueue_TheCauseOfANackCostsNoRequest(t *testing.T) {
	onMemory(t, func(w *world) {
		var commits [][]backend.Op
		armed := false
		q := w.hookedQueue("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if armed && c.Op == "commit" {
				commits = append(commits, c.Ops)
			} else if armed {
				w.T.Errorf("a %s of %s", c.Op, c.Path)
			}
			return nil
		}}, nil)
		mustPut(w.T, q, 1, 2)
		one, two := mustTake(w.T, q, 1), mustTake(w.T, q, 2)
		armed = true
		if err := errors.Join(one.Nack(time.Hour), two.NackCause(time.Hour, errors.New("busy"))); err != nil {
			w.T.Fatal(err)
		}
		armed = false
		if len(commits) != 2 || len(commits[0]) != len(commits[1]) {
			w.T.Errorf("%v", commits)
		}
	})
}

// A service may take few bytes in one commit.
func TestQueue_ACauseThatDoesNotFitIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := coordtest.Open(t, memory.New(&memory.Options{Limits: backend.Limits{Bytes: 1400}}), nil)
		q := coord.NewQueue[int](c, "/q", nil)
		mustPut(t, q, 1, 2)
		for n, text := range []string{strings.Repeat("x", 2000), "short"} {
			if err := mustTake(t, q, n+1).NackCause(time.Duration(n+1)*time.Hour, errors.New(text)); err != nil {
				t.Fatal(err)
			}
		}
		if all := retries(t, &q.Consumer); len(all) != 2 || all[0].Error != "" || all[1].Error != "short" {
			t.Errorf("%+v, %+v", all[0], all[1])
		}
	})
}

// An item that is claimed too early is put off again until the same time. Its claim has deleted the cause.
func TestQueue_AnItemThatIsClaimedEarlyLosesItsCause(t *testing.T) {
	onMemory(t, func(w *world) {
		w.serviceTime()
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).NackCause(time.Minute, errors.New("busy")); err != nil {
			w.T.Fatal(err)
		}
		before := retries(w.T, &q.Consumer)
		time.Sleep(time.Minute + time.Second)
		w.setClock(-10 * time.Minute) // the client goes by its estimate
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		after := retries(w.T, &q.Consumer)
		if len(before) != 1 || before[0].Error != "busy" || len(after) != 1 || !after[0].Next.Equal(before[0].Next) || after[0].Attempts != 1 || after[0].Error != "" {
			w.T.Errorf("%+v, %+v", before, after)
		}
	})
}
