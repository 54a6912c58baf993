package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/usercode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBox_DeliversInOrderOneAtATime(t *testing.T) {
	const n = 3 * limit
	var got []int // not guarded: the race detector sees calls that overlap
	b := New(func(v int) { got = append(got, v) }, func(n int) { t.Errorf("%d dropped", n) }, nil)
	for i := range n {
		b.Put(i)
		if i%(limit/2) == 0 {
			b.mu.Lock()
			idle := b.idle
			b.mu.Unlock()
			if idle != nil {
				<-idle // so that nothing is dropped, and a new goroutine starts
			}
		}
	}
	if !b.Drain(time.Minute) {
		t.Fatal("not delivered")
	}
	for i, v := range got {
		if i != v {
			t.Fatalf("%d at the place of %d", v, i)
		}
	}
	if len(got) != n {
		t.Errorf("%d delivered, want %d", len(got), n)
	}
	b.Put(n)
	if !b.Drain(time.Minute) || len(got) != n+1 {
		t.Error("nothing is delivered after Drain")
	}
}

// Put does not wait for a function that blocks. Excess values are counted, and reported at
// their place in the order, even if no value follows.
func TestBox_DropsAndCountsWhenItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		var got []string
		b := New(func(v int) {
			<-block
			got = append(got, fmt.Sprint(v))
		}, func(n int) { got = append(got, fmt.Sprintf("%d dropped", n)) }, nil)
		put := func(from, n int) {
			for i := range n {
				b.Put(from + i)
			}
		}
		put(0, limit)
		synctest.Wait()
		put(-3, 3) // beyond the limit
		block <- struct{}{}
		synctest.Wait()
		put(limit, 1)
		put(-2, 2) // beyond the limit
		close(block)
		synctest.Wait()
		var want []string
		for i := range limit {
			want = append(want, fmt.Sprint(i))
		}
		want = append(want, "3 dropped", fmt.Sprint(limit), "2 dropped")
		if !slices.Equal(got, want) {
			t.Errorf("%d delivered, want %d; the last %v, want %v", len(got), len(want), got[max(0, len(got)-4):], want[len(want)-4:])
		}
		if !b.Drain(0) {
			t.Error("not idle")
		}
	})
}

// Drain waits no longer than its bound, and the function is not called after that.
func TestBox_DrainWaitsNoLongerThanTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		calls := 0
		b := New(func(int) { calls++; <-block }, func(int) {}, nil)
		b.Put(1)
		b.Put(2)
		start := time.Now()
		if b.Drain(time.Second) || time.Since(start) != time.Second {
			t.Errorf("Drain took %v, want a second", time.Since(start))
		}
		close(block)
		synctest.Wait()
		b.Put(3)
		if calls != 1 || b.idle != nil {
			t.Errorf("%d calls, want 1 and no goroutine", calls)
		}
	})
}

// slowHandler blocks for a while in each method.
type slowHandler struct {
	slog.Handler
	while time.Duration
}

func (h slowHandler) Enabled(ctx context.Context, l slog.Level) bool {
	time.Sleep(h.while)
	return h.Handler.Enabled(ctx, l)
}

func (h slowHandler) Handle(ctx context.Context, r slog.Record) error {
	time.Sleep(h.while)
	return h.Handler.Handle(ctx, r)
}

func TestLogger_KeepsTimeAndPositionOfALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		start := time.Now()
		l := NewLogger(slog.New(slowHandler{slog.NewTextHandler(&text, &slog.HandlerOptions{AddSource: true}), time.Second}).With("app", "a"))
		l.Warn("one", "n", 1)
		l.Debug("two")
		l.Info("three")
		if !time.Now().Equal(start) {
			t.Errorf("it waited for %v", time.Since(start))
		}
		if !l.Drain(time.Minute) {
			t.Fatal("not written")
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 2 {
			t.Fatalf("written: %q", lines)
		}
		for i, want := range []string{`level=WARN source=`, `level=INFO source=`} {
			if !strings.HasPrefix(lines[i], "time="+start.Format("2006-01-02T15:04:05.000Z07:00")+" "+want) ||
				!strings.Contains(lines[i], "outbox_test.go:") || !strings.Contains(lines[i], "app=a") {
				t.Errorf("written: %s", lines[i])
			}
		}
		if quiet := NewLogger(nil); !quiet.Silent() || !quiet.Drain(0) {
			t.Error("a Logger for nil is not silent")
		} else {
			quiet.Error("not logged")
		}
	})
}

// A call that does not return costs its own value only. It is reported at once, and then at most once a
// minute, also if the report does not return either.
func TestBox_ACallThatDoesNotReturnCostsItsValue(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("secret") }, "Goexit": runtime.Goexit} {
		for _, report := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", report), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var got, failures []int
					b := New(func(v int) {
						got = append(got, v)
						if v%2 == 1 {
							fail()
						}
					}, func(int) { fail() }, func(f *usercode.Failure, n int) {
						if !strings.Contains(f.Stack, "outbox_test.go:") || (f.Type == "string") != (name == "panic") {
							t.Errorf("%+v", f)
						}
						failures = append(failures, n)
						if !report {
							fail()
						}
					})
					for v := range 6 {
						b.Put(v)
					}
					b.mu.Lock()
					b.lost = 7
					b.mu.Unlock()
					b.Put(6)
					if !b.Drain(time.Second) {
						t.Fatal("not delivered")
					}
					time.Sleep(tellFailures)
					b.Put(7)
					if !b.Drain(time.Second) {
						t.Fatal("not delivered")
					}
					want := []int{1, 4} // the values 1, and 3, 5, the dropped ones and 7
					if !report {
						want = []int{1, 5} // and the first report
					}
					if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7}) || !slices.Equal(failures, want) {
						t.Errorf("delivered %v; reported %v, want %v", got, failures, want)
					}
				})
			})
		}
	}
}

// panicking is a handler that panics at one line.
type panicking struct{ slog.Handler }

func (h panicking) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "two" {
		panic("secret")
	}
	return h.Handler.Handle(ctx, r)
}

func TestLogger_APanicOfTheHandlerCostsOneLine(t *testing.T) {
	var text strings.Builder
	l := NewLogger(slog.New(panicking{slog.NewTextHandler(&text, nil)}))
	for _, line := range []string{"one", "two", "three"} {
		l.Info(line)
	}
	if !l.Drain(time.Minute) {
		t.Fatal("not written")
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], "panicked or ended its goroutine") || !strings.Contains(lines[1], "type=string") ||
		!strings.Contains(lines[1], "outbox_test.go:") || !strings.Contains(lines[2], "msg=three") || strings.Contains(text.String(), "secret") {
		t.Errorf("written: %q", lines)
	}
}
