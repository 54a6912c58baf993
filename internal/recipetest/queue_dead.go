package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// letters returns the dead letters of a queue.
func letters[T any](t *testing.T, q *coord.Consumer[T]) (all []*coord.DeadLetter[T]) {
	t.Helper()
	for d, err := range q.Dead(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}

// bury puts the numbers from first to last, and makes them dead letters.
func (w *world) bury(q *coord.Queue[int], first, last int) (ids []string) {
	w.T.Helper()
	for n := first; n <= last; n++ {
		mustPut(w.T, q, n, n)
		it := mustTake(w.T, q, n)
		if err := it.NackCause(0, fmt.Errorf("bad %d", n)); err != nil {
			w.T.Fatal(err)
		}
		ids = append(ids, it.ID)
	}
	return ids
}

// deadQueue returns the queue of the dead letters of /q, on a client of its own.
func (w *world) deadQueue(name string) *coord.Queue[int] {
	w.T.Helper()
	q := coord.NewQueue[int](w.Open(name, nil), "/q/dead", nil)
	*coordtest.Inside(&q.Consumer).BucketSize = 6
	return q
}

// badError is an error whose text cannot be had.
type badError struct{}

func (*badError) Error() string { panic("no text") }

// queueDeadTests are tests of Queue on each service.
type queueDeadTests struct{ Services }

func (on queueDeadTests) ADeadLetterSaysWhy(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		o := &coord.QueueOptions[int]{MaxAttempts: 2}
		x, c := w.taped("a", nil)
		q := coord.NewQueue(c, "/q", o)
		// An error of a handler, one that is given to Nack, and none.
		mustPut(w.T, q, 1, 1)
		wk := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			if it.Attempt == 1 {
				return errors.New("first") // not the one that counts
			}
			return fmt.Errorf("no room for %d\xff%s", it.Value, strings.Repeat("é", 5000))
		})
		w.Eventually("it is a dead letter", func() bool { return len(letters(w.T, &q.Consumer)) == 1 })
		wk.finish()
		one := &coord.QueueOptions[int]{MaxAttempts: 1}
		once := coord.NewQueue(w.Open("b", nil), "/q", one)
		mustPut(w.T, q, 2, 4)
		sessions := make(map[int]int64)
		for n, cause := range []error{errors.New("broken"), nil, new(badError)} {
			it := mustTake(w.T, once, n+2)
			sessions[it.Value] = it.Session()
			if err := it.NackCause(time.Hour, cause); err != nil {
				w.T.Fatal(err)
			}
		}
		// Bytes that the codec cannot decode.
		if _, err := coord.NewQueue[string](w.Open("c", nil), "/q", nil).Put(ctx, "five"); err != nil {
			w.T.Fatal(err)
		}
		_, err := q.TryTake(ctx)
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		// A claim that times out.
		slow := coord.NewQueue(w.Open("d", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 1, ClaimTimeout: claimTime})
		mustPut(w.T, q, 6, 6)
		it := mustTake(w.T, slow, 6)
		<-it.Done()
		w.Eventually("it is a dead letter", func() bool { return len(letters(w.T, &q.Consumer)) == 6 })
		// A consumer that died.
		mustPut(w.T, q, 7, 7)
		it = mustTake(w.T, once, 7)
		w.Link("b").Expire(it.Session())
		<-it.Done()
		w.Eventually("it is a dead letter", func() bool {
			_, err := once.TryTake(ctx)
			coordtest.WantErr(w.T, err, coord.ErrEmpty)
			return len(letters(w.T, &q.Consumer)) == 7
		})
		want := []struct {
			reason   trace.Reason
			text     string
			attempts int
		}{
			{trace.ReasonFailed, "no room for 1\uFFFDé", 2}, {trace.ReasonFailed, "broken", 1}, {trace.ReasonFailed, "", 1},
			{trace.ReasonFailed, "PANIC", 1}, {trace.ReasonUndecodable, "cannot decode", 1},
			{trace.ReasonTimeout, "claim timed out", 1}, {trace.ReasonAbandoned, "its consumer died", 1},
		}
		for i, d := range letters(w.T, &q.Consumer) {
			v := want[i]
			if d.Reason != v.reason || !strings.Contains(d.Error, v.text) || v.text == "" && d.Error != "" || d.Attempts != v.attempts || d.Queue != w.Path("/q") || len(d.Error) > 1024 {
				w.T.Errorf("%d: %+v, want %+v", i+1, d, v)
			}
			if i != 4 && (d.Value != i+1 || d.Err != nil) || i == 4 && (!errors.Is(d.Err, coord.ErrDecode) || string(d.Data) != `"five"` || d.Value != 0) {
				w.T.Errorf("%d: %+v", i+1, d)
			}
			if s := sessions[i+1]; s != 0 && d.Session != s || (d.Session == 0) != (d.Reason == trace.ReasonAbandoned) {
				w.T.Errorf("%d: session %x, want %x", i+1, d.Session, s)
			}
			if d.Claimed || time.Since(d.Since).Abs() > time.Hour {
				w.T.Errorf("%d: %+v", i+1, d)
			}
		}
		var settled []trace.ItemSettled
		w.Eventually("two are reported", func() bool {
			settled = slices.DeleteFunc(eventsOf[trace.ItemSettled](x), func(e trace.ItemSettled) bool { return e.Outcome != trace.ItemDead })
			return len(settled) > 1
		})
		if len(settled) != 2 || settled[0].Reason != trace.ReasonFailed || settled[1].Reason != trace.ReasonUndecodable {
			w.T.Errorf("reported %+v", settled)
		}
	})
}

// reasons returns the names of the reasons in the buckets of the dead letters.
func (w *world) reasons() (names []string) {
	for _, b := range w.Children("/q/dead/items") {
		for _, n := range w.Children("/q/dead/items/" + b) {
			if strings.HasPrefix(n, "r-") {
				names = append(names, n)
			}
		}
	}
	return names
}

func (on queueDeadTests) AReasonGoesWithItsDeadLetter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		dead := w.deadQueue("d")
		for name, end := range map[string]func() error{
			"ack": func() error { return mustTake(w.T, dead, 1).Ack() },
			"pop": func() error { _, err := dead.Pop(ctx); return err },
			"ackall": func() error {
				return dead.AckAll(mustTake(w.T, dead, 1))
			},
			"purge":  func() error { _, err := dead.Purge(ctx); return err },
			"remove": func() error { return q.Remove(ctx, letters(w.T, &q.Consumer)[0].ID) },
			"redrive": func() error {
				if _, err := q.Redrive(ctx); err != nil {
					return err
				}
				return mustTake(w.T, q, 1).Ack()
			},
			"an outsider": func() error {
				b := w.Children("/q/dead/items")[0]
				_, err := w.Session("x").Commit(ctx, backend.Delete(w.Path("/q/dead/items/"+b+"/"+itemNames(w, "/q/dead/items/"+b)[0]), backend.AnyVersion))
				if err == nil {
					if _, err := dead.TryTake(ctx); !errors.Is(err, coord.ErrEmpty) {
						w.T.Error(err)
					}
				}
				return err
			},
			"bury": func() error {
				d := coord.NewQueue(w.Open("e", nil), "/q/dead", &coord.QueueOptions[int]{MaxAttempts: 1})
				if err := mustTake(w.T, d, 1).Nack(0); err != nil {
					return err
				}
				if l := letters(w.T, &d.Consumer); len(l) != 1 || l[0].Queue != w.Path("/q/dead") {
					w.T.Errorf("%+v", l)
				}
				return d.Remove(ctx, letters(w.T, &d.Consumer)[0].ID)
			},
		} {
			w.bury(q, 1, 1)
			if n := len(w.reasons()); n != 1 {
				w.T.Fatalf("%s: %d reasons", name, n)
			}
			if err := end(); err != nil {
				w.T.Errorf("%s: %v", name, err)
			}
			if n, l := w.reasons(), letters(w.T, &q.Consumer); len(n) != 0 || len(l) != 0 {
				w.T.Errorf("%s: left %v, %v", name, n, l)
			}
		}
		w.drained(&q.Consumer)
	})
}

// Whatever an outsider makes of the nodes of the reasons, the items can be buried, read, taken,
// moved and removed.
func (on queueDeadTests) StrangeReasonsDoNotMatter(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		dead := w.deadQueue("d")
		s := w.Session("x")
		commit := func(ops ...backend.Op) {
			w.T.Helper()
			if _, err := s.Commit(ctx, ops...); err != nil {
				w.T.Fatal(err)
			}
		}
		last := func() string {
			names := w.Children("/q/dead/items")
			slices.SortFunc(names, func(a, b string) int { return len(a)*1000 + strings.Compare(a, b) - len(b)*1000 })
			return w.Path("/q/dead/items/" + names[len(names)-1])
		}
		w.bury(q, 1, 1)
		mustAck(w.T, mustTake(w.T, dead, 1))
		ends := []func(id string) error{
			func(string) error { return mustTake(w.T, dead, 1).Ack() },
			func(id string) error { return q.Remove(ctx, id) },
			func(id string) error {
				if n, err := q.Redrive(ctx, id); n != 1 || err != nil {
					return fmt.Errorf("%d redriven: %w", n, err)
				}
				return mustTake(w.T, q, 1).Ack()
			},
			func(string) error {
				n, err := dead.Purge(ctx)
				if n != 1 {
					w.T.Errorf("purged %d", n)
				}
				return err
			},
		}
		for i, end := range ends {
			for what, spoil := range map[string]func(id string){
				"garbage": func(id string) { commit(backend.SetData(last()+"/r-"+id, []byte("\xff{"), backend.AnyVersion)) },
				"empty":   func(id string) { commit(backend.SetData(last()+"/r-"+id, nil, backend.AnyVersion)) },
				"numbers": func(id string) {
					commit(backend.SetData(last()+"/r-"+id, []byte(`{"reason":"x","queue":"`+w.Path("/q")+`","attempts":-5,"due":-9223372036854775808,"session":"z","priority":9}`), backend.AnyVersion))
				},
				"gone": func(id string) { commit(backend.Delete(last()+"/r-"+id, backend.AnyVersion)) },
			} {
				id := w.bury(q, 1, 1)[0]
				spoil(id)
				d := letters(w.T, &q.Consumer)
				if len(d) != 1 || d[0].ID != id || d[0].Value != 1 || d[0].Attempts != 0 {
					w.T.Fatalf("%d, %s: %+v", i, what, d)
				}
				if err := end(id); err != nil {
					w.T.Errorf("%d, %s: %v", i, what, err)
				}
				if n := mustLen(w.T, &dead.Consumer) + len(w.reasons()); n != 0 {
					w.T.Errorf("%d, %s: %d nodes left", i, what, n)
				}
			}
		}
		// A node that is in the way of the reason, with a child.
		for _, end := range ends {
			mustPut(w.T, q, 1, 1)
			it := mustTake(w.T, q, 1)
			r := last() + "/r-" + it.ID
			commit(backend.Create(r, []byte("mine"), backend.Persistent), backend.Create(r+"/child", nil, backend.Persistent))
			if err := it.NackCause(0, errors.New("why")); err != nil {
				w.T.Fatal(err)
			}
			if d := letters(w.T, &q.Consumer); len(d) != 1 || d[0].Value != 1 || d[0].Reason != "" {
				w.T.Fatalf("%+v", d)
			}
			if err := end(it.ID); err != nil {
				w.T.Error(err)
			}
			if n := mustLen(w.T, &dead.Consumer); n != 0 {
				w.T.Errorf("%d dead letters left", n)
			}
			commit(backend.Delete(r+"/child", backend.AnyVersion), backend.Delete(r, backend.AnyVersion))
		}
	})
}

// The list of the dead letters ends with an error if it is not complete.
func (on queueDeadTests) AListOfDeadLettersThatIsCutOffSaysSo(t *testing.T) {
	on.each(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{MaxAttempts: 1})
		w.bury(q, 1, 3)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		n, last := 0, error(nil)
		for d, err := range q.Dead(ctx) {
			if err != nil {
				last = err
				continue
			}
			if n++; d.Value != n {
				w.T.Errorf("%+v", d)
			}
			if n == 3 {
				cancel()
			}
		}
		if n != 3 || last != nil {
			w.T.Errorf("%d letters, %v", n, last)
		}
		n = 0
		for d, err := range q.Dead(ctx) {
			if n++; d != nil {
				w.T.Errorf("%+v", d)
			}
			coordtest.WantErr(w.T, err, context.Canceled)
		}
		if n != 1 {
			w.T.Errorf("%d pairs", n)
		}
		for d, err := range coord.NewQueue[int](w.Open("b", nil), "//", nil).Dead(context.Background()) {
			if d != nil {
				w.T.Error(d)
			}
			coordtest.WantErr(w.T, err, coord.ErrBadPath)
		}
	})
}
