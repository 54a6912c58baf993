package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// counterTests are tests of Counter on each service.
type counterTests struct{ Services }

func (on counterTests) ACounterIsPlainDigits(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		n := coord.NewCounter(w.Open("a", nil), "/x/n")
		want := func(op string, got int64, err error, want int64) {
			w.T.Helper()
			if err != nil || got != want {
				w.T.Errorf("%s: %d, %v, want %d", op, got, err, want)
			}
		}
		got, err := n.Get(ctx)
		want("get, missing", got, err, 0)
		got, err = n.Add(ctx, 40)
		want("add", got, err, 40)
		got, err = n.Add(ctx, -50)
		want("add", got, err, -10)
		if data, stat := w.nodeData("/x/n"); data != "-10" || stat.EphemeralOwner != 0 || stat.Version != 1 {
			w.T.Errorf("node %q, %+v", data, stat)
		}
		got, err = n.Add(ctx, 0)
		want("add", got, err, -10)
		w.outsider(backend.SetData(w.Path("/x/n"), []byte(" 7\n"), backend.AnyVersion))
		got, err = n.Get(ctx)
		want("get, by hand", got, err, 7)
		w.outsider(backend.SetData(w.Path("/x/n"), nil, backend.AnyVersion))
		got, err = n.Get(ctx)
		want("get, nothing written", got, err, 0)
		w.outsider(backend.SetData(w.Path("/x/n"), []byte("7"), backend.AnyVersion))
		got, err = n.Reserve(ctx, 3)
		want("reserve", got, err, 8)
		got, err = n.Reserve(ctx, 1)
		want("reserve", got, err, 11)
		got, err = coord.NewCounter(w.Open("b", nil), "/x/n").Add(ctx, 1)
		want("another client", got, err, 12)
		first, err := coord.NewCounter(w.Open("c", nil), "/ids").Reserve(ctx, 10)
		want("the first number of all", first, err, 1)
	})
}

func (on counterTests) ACounterThatWouldOverflowDoesNotChange(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		n := coord.NewCounter(w.Open("a", nil), "/n")
		for _, c := range []struct {
			start, delta int64
			ok           bool
		}{
			{math.MaxInt64 - 1, 1, true}, {math.MaxInt64, 1, false}, {1, math.MaxInt64, false}, {math.MaxInt64, math.MaxInt64, false},
			{math.MinInt64 + 1, -1, true}, {math.MinInt64, -1, false}, {-1, math.MinInt64, false}, {math.MinInt64, math.MinInt64, false},
			{math.MaxInt64, math.MinInt64, true}, {math.MinInt64, math.MaxInt64, true}, {0, math.MinInt64, true},
		} {
			text := fmt.Sprint(c.start)
			w.outsider(backend.Create(w.Path("/n"), []byte(text), backend.Persistent))
			got, err := n.Add(ctx, c.delta)
			if c.ok {
				if err != nil || got != c.start+c.delta {
					w.T.Errorf("%d and %d: %d, %v", c.start, c.delta, got, err)
				}
			} else {
				coordtest.WantErr(w.T, err, coord.ErrLimit)
				if data, stat := w.nodeData("/n"); data != text || stat.Version != 0 {
					w.T.Errorf("%d and %d: the node holds %s", c.start, c.delta, data)
				}
				if c.delta > 0 {
					_, err = n.Reserve(ctx, c.delta)
					coordtest.WantErr(w.T, err, coord.ErrLimit)
				}
			}
			w.outsider(backend.Delete(w.Path("/n"), backend.AnyVersion))
		}
		for _, count := range []int64{0, -1, math.MinInt64} {
			_, err := n.Reserve(ctx, count)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
		}
		if names := w.Children("/n"); len(names) != 0 {
			w.T.Errorf("%v", names)
		}
	})
}

func (on counterTests) ACounterLeavesDataThatIsNoNumberAlone(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		n := coord.NewCounter(w.Open("a", nil), "/n")
		for _, text := range []string{"x", "1 2", "1e3", "0x1", "1_000", "1.0", "9223372036854775808", "\x00", strings.Repeat("9", 100_000)} {
			w.outsider(backend.Create(w.Path("/n"), []byte(text), backend.Persistent))
			for op, call := range map[string]func() error{
				"get":     func() error { _, err := n.Get(ctx); return err },
				"add":     func() error { _, err := n.Add(ctx, 1); return err },
				"reserve": func() error { _, err := n.Reserve(ctx, 1); return err },
			} {
				err := call()
				var e *backend.Error
				if !errors.Is(err, coord.ErrDecode) || !errors.As(err, &e) || e.Op != op || e.Path != w.Path("/n") {
					w.T.Errorf("%s with %.40q: %v", op, text, err)
				}
				if len(err.Error()) > 300 {
					w.T.Errorf("an error of %d bytes", len(err.Error()))
				}
			}
			if data, stat := w.nodeData("/n"); data != text || stat.Version != 0 {
				w.T.Errorf("the node holds %.40q", data)
			}
			w.outsider(backend.Delete(w.Path("/n"), backend.AnyVersion))
		}
	})
}

// An addition that is applied, and repeated because its reply is lost, would count twice.
func (on counterTests) AnAdditionWhoseReplyIsLostCountsOnce(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var before, after coordtest.Nth
		n := coord.NewCounter(w.Open("a", &backendtest.Hooks{Before: before.Before, After: after.After}), "/n")
		other := coord.NewCounter(w.Open("b", nil), "/n")
		sum := int64(0)
		for i, fault := range []*coordtest.Nth{&after, &before, &after, &before} {
			fault.Arm(1, w.writesTo("/n"), coordtest.Lose)
			got, err := n.Add(ctx, 5)
			if sum += 5; err != nil || got != sum {
				w.T.Errorf("%d: %d, %v, want %d", i, got, err, sum)
			}
		}
		// Another client adds before the outcome of the first addition is determined.
		after.Arm(1, w.writesTo("/n"), func(context.Context, backendtest.Call, error) error {
			if _, err := other.Add(ctx, 100); err != nil {
				w.T.Error(err)
			}
			return backend.ErrUncertain
		})
		if first, err := n.Reserve(ctx, 5); err != nil || first != sum+1 {
			w.T.Errorf("%d, %v, want %d", first, err, sum+1)
		}
		if got, err := n.Get(ctx); err != nil || got != sum+105 {
			w.T.Errorf("%d, %v, want %d", got, err, sum+105)
		}
	})
}
