package recipetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// noReturn are the ways in which a function does not return.
var noReturn = map[string]func(){
	"panic":  func() { panic(unspoken) },
	"Goexit": runtime.Goexit,
}

// onNoReturn runs f for each way in which a function does not return, on memory.
func onNoReturn(t *testing.T, f func(w *world, fail func())) {
	for name, fail := range noReturn {
		t.Run(name, func(t *testing.T) { onMemory(t, func(w *world) { f(w, fail) }) })
	}
}

func TestUserCode_ASiteFunctionThatDoesNotReturn(t *testing.T) {
	for _, at := range []string{"Prepare", "Commit", "Abort", "Error"} {
		t.Run(at, func(t *testing.T) {
			onNoReturn(t, func(w *world, fail func()) {
				c := w.openLogged("site")
				var mu sync.Mutex
				calls := make(map[string]int)
				call := func(what string, tx coord.Branch[string]) {
					mu.Lock()
					defer mu.Unlock()
					calls[what+" "+tx.ID]++
					if n := calls[what+" "+tx.ID]; what == at && tx.ID == "bad" && n < 3 {
						fail()
					}
				}
				ctx, stop := context.WithCancel(context.Background())
				served := make(chan error, 1)
				go func() {
					served <- coord.NewParticipant(c.Client, "/tx", "a", coord.Handler[string]{
						Prepare: func(_ context.Context, tx coord.Branch[string]) error {
							call("Prepare", tx)
							switch {
							case tx.ID == "bad" && at == "Abort":
								return errors.New("no")
							case tx.ID == "bad" && at == "Error":
								return textless{fail}
							}
							return nil
						},
						Commit: func(_ context.Context, tx coord.Branch[string]) error { call("Commit", tx); return nil },
						Abort:  func(_ context.Context, tx coord.Branch[string]) error { call("Abort", tx); return nil },
					}).Serve(ctx)
				}()
				w.served("a")
				co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
				d := mustPropose(w.T, co, w.proposal("bad", "a"))
				if d.Commit != (at == "Commit") || strings.Contains(d.Reason, unspoken) {
					w.T.Errorf("%+v", d)
				}
				mustPropose(w.T, co, w.proposal("good", "a"))
				w.over("a")
				want, failed := map[string]int{"Prepare bad": 1, "Prepare good": 1, "Commit good": 1}, 2
				switch at {
				case "Commit":
					want["Commit bad"] = 3
				case "Abort":
					want["Abort bad"] = 3
				default:
					want["Abort bad"], failed = 1, 1
				}
				if fmt.Sprint(calls) != fmt.Sprint(want) {
					w.T.Errorf("called %v, want %v", calls, want)
				}
				what := at
				if at == "Error" {
					what = "Prepare"
				}
				if n := c.failures(what); n != failed {
					w.T.Errorf("%d failures logged, want %d", n, failed)
				}
				stop()
				if err := <-served; !errors.Is(err, context.Canceled) {
					w.T.Errorf("Serve: %v", err)
				}
			})
		})
	}
}

// textless is an error whose method does not return.
type textless struct{ fail func() }

func (e textless) Error() string { e.fail(); return "" }

func TestUserCode_AnInDoubtThatDoesNotReturn(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		c := w.openLogged("site")
		called := make(chan string, 10)
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() {
			served <- coord.NewParticipant(c.Client, "/tx", "a", coord.Handler[string]{
				Prepare: nothing, Commit: nothing, Abort: nothing,
				InDoubt: func(_ context.Context, tx coord.Branch[string], _ error) { called <- tx.ID; fail() },
			}).Serve(ctx)
		}()
		w.accounts("b")[0].votes(func(ctx context.Context, tx coord.Branch[string]) error {
			if tx.ID == "bad" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		w.served("a", "b")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		go co.Propose(context.Background(), w.proposal("bad", "a", "b"))
		time.Sleep(time.Second)
		w.overwrite("/tx/tx/bad", "no record")
		for _, name := range w.Children("/tx/tx/bad") {
			if strings.HasPrefix(name, "open-") {
				if _, err := w.Session("outsider").Commit(context.Background(), backend.Delete("/tx/tx/bad/"+name, backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		time.Sleep(3 * time.Minute)
		if d := mustPropose(w.T, co, w.proposal("good", "a", "b")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		if len(called) > 0 {
			if n := c.failures("InDoubt"); n != len(called) || n != 1 {
				w.T.Errorf("%d failures logged after %d calls, want one", n, len(called))
			}
		} else {
			w.T.Error("InDoubt is not called")
		}
		stop()
		<-served
	})
}

// A function of Run, and Restart, that do not return are called again after a growing pause.
func TestUserCode_AFunctionOfShardsThatDoesNotReturn(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		for _, restart := range []string{"none", "a second", "fails"} {
			c := w.openLogged(restart)
			o := &coord.ShardsOptions{ID: "a"}
			var calls, asked atomic.Int64
			switch restart {
			case "a second":
				o.Restart = func(n int, err error) time.Duration {
					if asked.Add(1); n != int(asked.Load()) || err == nil || strings.Contains(err.Error(), unspoken) {
						w.T.Errorf("Restart(%d, %v)", n, err)
					}
					return time.Second
				}
			case "fails":
				o.Restart = func(int, error) time.Duration { asked.Add(1); fail(); return 0 }
			}
			ctx, stop := context.WithTimeout(context.Background(), 9500*time.Millisecond)
			var token atomic.Int64
			err := coord.NewShards(c.Client, "/s", 1, o).Run(ctx, func(_ context.Context, sh *coord.Shard) error {
				calls.Add(1)
				if was := token.Swap(sh.Token()); was != 0 && was != sh.Token() {
					w.T.Error("the shard was released")
				}
				fail()
				return nil
			})
			stop()
			most, least := int64(30), int64(8) // 10, 20, 40 ms, and so on to a second, less a half at most
			if n := calls.Load(); err != nil || n > most || n < least {
				w.T.Errorf("restart %s: %d calls in 9.5 s, want %d to %d; %v", restart, n, least, most, err)
			}
			if n := c.failures("the function of a shard"); n != int(calls.Load()) {
				w.T.Errorf("restart %s: %d failures logged, want %d", restart, n, calls.Load())
			}
			if n := asked.Load(); restart != "none" && n != calls.Load() {
				w.T.Errorf("restart %s: asked %d times after %d calls", restart, n, calls.Load())
			}
			if n := c.failures("Restart"); restart == "fails" && n != int(asked.Load()) {
				w.T.Errorf("%d failures of Restart logged, want %d", n, asked.Load())
			}
		}
	})
}

// failing is JSON for strings, and does not return at one of them.
func failing(fail func()) coord.Codec[string] {
	k := coord.JSON[string]()
	return coord.Codec[string]{Encode: k.Encode, Decode: func(data []byte) (string, error) {
		v, err := k.Decode(data)
		if v == "bad" {
			fail()
		}
		return v, err
	}}
}

func TestUserCode_ACodecThatDoesNotReturnInAWatch(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		c, ctx := w.openLogged("reader"), context.Background()
		writer := coord.NewValue[string](w.Open("writer", nil), "/v", nil)
		v := coord.NewValue(c.Client, "/v", &coord.ValueOptions[string]{Codec: failing(fail)})
		changes := v.Watch(ctx)
		<-changes
		for _, text := range []string{"good", "bad", "good again"} {
			if _, err := writer.Set(ctx, text); err != nil {
				w.T.Fatal(err)
			}
			e := receive(w, "a change", changes)
			now, _ := v.Load()
			if text == "bad" {
				coordtest.WantErr(w.T, e.Err, coord.ErrDecode)
				coordtest.WantErr(w.T, now.Err, coord.ErrDecode)
				text = "good"
			} else if e.Err != nil || e.Value != text || now.Err != nil {
				w.T.Errorf("%q: watched %+v, loaded %+v", text, e, now)
			}
			if now.Value != text {
				w.T.Errorf("loaded %q, want %q", now.Value, text)
			}
		}
		if n := c.failures("Decode"); n != 1 {
			w.T.Errorf("%d failures logged, want one", n)
		}
	})
}

func TestUserCode_ACodecThatDoesNotReturnInAGroup(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		c, ctx := w.openLogged("reader"), context.Background()
		servers := coord.NewGroup[string](w.Open("servers", nil), "/g", nil)
		for id, value := range map[string]string{"a": "good", "b": "bad"} {
			if _, err := servers.Join(ctx, id, value); err != nil {
				w.T.Fatal(err)
			}
		}
		g := coord.NewGroup(c.Client, "/g", &coord.GroupOptions[string]{Codec: failing(fail)})
		check := func(list []coord.Member[string]) {
			w.T.Helper()
			if len(list) != 2 || list[0].Err != nil || list[0].Value != "good" || !errors.Is(list[1].Err, coord.ErrDecode) {
				w.T.Errorf("%+v", list)
			}
		}
		list, err := g.Members(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		check(list)
		if b, err := g.Member(ctx, "b"); !errors.Is(err, coord.ErrDecode) && !errors.Is(b.Err, coord.ErrDecode) {
			w.T.Errorf("%+v, %v", b, err)
		}
		check(receive(w, "the members", g.Watch(ctx)).Members)
		p, err := g.Picker(ctx, coord.PickRoundRobin)
		if err != nil {
			w.T.Fatal(err)
		}
		for range 3 {
			if m, err := p.Next(ctx); err != nil || m.ID != "a" {
				w.T.Errorf("picked %+v, %v", m, err)
			}
		}
		if c.failures("Decode") == 0 {
			w.T.Error("no failure logged")
		}
	})
}

// An item at which the codec does not return goes to the dead letters, and the channel delivers further items.
func TestUserCode_ACodecThatDoesNotReturnInItems(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		c, ctx := w.openLogged("consumer"), context.Background()
		producer := coord.NewQueue[string](w.Open("producer", nil), "/q", nil)
		for _, text := range []string{"bad", "good"} {
			if _, err := producer.Put(ctx, text); err != nil {
				w.T.Fatal(err)
			}
		}
		q := coord.NewQueue(c.Client, "/q", &coord.QueueOptions[string]{Codec: failing(fail), MaxAttempts: 3})
		it := receive(w, "an item", q.Items(ctx))
		if it.Value != "good" {
			w.T.Errorf("received %q", it.Value)
		}
		if err := it.Ack(); err != nil {
			w.T.Error(err)
		}
		if n := c.failures("Decode"); n != 3 {
			w.T.Errorf("%d failures logged, want one for each attempt", n)
		}
	})
}

// A panic of a function under a lock reaches the caller, and the lock is free.
func TestUserCode_APanicUnderALockReachesTheCaller(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		c, ctx := w.Open("a", nil), context.Background()
		sem := coord.NewSemaphore(c, "/sem", 1, nil)
		rw := coord.NewRWMutex(c, "/rw", nil)
		e := coord.NewElection(c, "/e", nil)
		hold := func(context.Context, *coord.Hold) error { fail(); return nil }
		for name, do := range map[string]func(){
			"Mutex":          func() { coord.NewMutex(c, "/m", nil).Do(ctx, hold) },
			"RWMutex":        func() { rw.Do(ctx, hold) },
			"RWMutex reader": func() { rw.RLocker().Do(ctx, hold) },
			"Semaphore":      func() { sem.Locker(1).Do(ctx, hold) },
			"Election":       func() { e.Run(ctx, func(context.Context, *coord.Term) error { fail(); return nil }) },
			"Update": func() {
				coord.NewValue[int](c, "/v", nil).Update(ctx, func(int) (int, error) { fail(); return 0, nil })
			},
		} {
			ended := make(chan any)
			go func() {
				returned := false
				defer func() {
					v := recover()
					if returned {
						v = "returned"
					}
					ended <- v
				}()
				do()
				returned = true
			}()
			if v := <-ended; v != nil && v != unspoken {
				w.T.Errorf("%s: the caller sees %v", name, v)
			}
		}
		for _, dir := range []string{"/m", "/rw", "/e"} {
			w.Empty(dir)
		}
		if _, err := sem.Locker(1).TryLock(ctx); err != nil {
			w.T.Errorf("the permit: %v", err)
		}
		if err := c.Close(); err != nil {
			w.T.Error(err)
		}
	})
}

// An event at which Trace does not return, and a line at which the Logger does not, are lost alone.
func TestUserCode_ATraceThatDoesNotReturn(t *testing.T) {
	onNoReturn(t, func(w *world, fail func()) {
		var mu sync.Mutex
		var text bytes.Buffer
		var seen []string
		c := coordtest.Open(w.T, w.Link("a"), &coord.Options{
			Logger: slog.New(slog.NewTextHandler(&lockedWriter{mu: &mu, to: &text}, nil)),
			Trace: func(_ context.Context, e trace.Event) {
				seen = append(seen, fmt.Sprintf("%T", e))
				if _, ok := e.(trace.HoldGranted); ok {
					fail()
				}
			},
		})
		for range 2 {
			h, err := coord.NewMutex(c, "/m", nil).Lock(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			h.Release()
		}
		c.Close()
		want := []string{"trace.HoldGranted", "trace.HoldReleased", "trace.HoldGranted", "trace.HoldReleased"}
		if seen = slices.DeleteFunc(seen, func(s string) bool { return !strings.HasPrefix(s, "trace.Hold") }); !slices.Equal(seen, want) {
			w.T.Errorf("traced %v, want %v", seen, want)
		}
		if n := strings.Count(text.String(), "Trace panicked or ended its goroutine"); n != 1 || !strings.Contains(text.String(), "usercode_test.go:") {
			w.T.Errorf("%d lines, want one with the stack:\n%s", n, &text)
		}
	})
}
