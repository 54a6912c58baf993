package recipetest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// The delay of the options replaces the default one. If it cannot be had, the default one counts.
func TestWork_RetryDelayOfTheOptions(t *testing.T) {
	const first, second = 100 * time.Millisecond, 200 * time.Millisecond // by default
	for _, test := range []struct {
		name  string
		delay func(attempt int, err error) time.Duration
		want  []time.Duration
		log   string
	}{
		{"a delay", func(attempt int, _ error) time.Duration { return time.Duration(attempt) * time.Hour }, []time.Duration{time.Hour, 2 * time.Hour}, ""},
		{"none", func(int, error) time.Duration { return 0 }, []time.Duration{0, 0}, ""},
		{"negative", func(int, error) time.Duration { return -time.Hour }, []time.Duration{0, 0}, ""},
		{"panic", func(int, error) time.Duration { panic("a secret") }, []time.Duration{first, second}, "function=RetryDelay"},
		{"Goexit", func(int, error) time.Duration { runtime.Goexit(); return time.Hour }, []time.Duration{first, second}, "function=RetryDelay"},
		{"slow", func(int, error) time.Duration { time.Sleep(time.Minute); return -1 }, []time.Duration{time.Minute, time.Minute}, ""},
	} {
		for how, fail := range map[string]func() error{
			"an error": func() error { return errHandler },
			"a panic":  func() error { panic("oh") },
			"Goexit":   func() error { runtime.Goexit(); return nil },
		} {
			t.Run(test.name+" after "+how, func(t *testing.T) {
				onMemory(t, func(w *world) {
					var asked []int
					q, _, log := w.loggedQueue("a", &coord.QueueOptions[int]{MaxAttempts: 3, RetryDelay: func(attempt int, err error) time.Duration {
						asked = append(asked, attempt)
						if errors.Is(err, errHandler) != (how == "an error") || err == nil {
							w.T.Errorf("asked for %v after %s", err, how)
						}
						return test.delay(attempt, err)
					}})
					mustPut(w.T, q, 1, 1)
					var waits []time.Duration
					last := time.Now()
					x := w.work(q, 1, func(context.Context, *coord.Item[int]) error {
						waits = append(waits, time.Since(last))
						last = time.Now()
						return fail()
					})
					it, err := w.deadQueue("d").Take(context.Background())
					if err != nil {
						w.T.Fatal(err)
					}
					mustAck(w.T, it)
					x.finish()
					onTime := func(got, want time.Duration) bool { return got >= want && got <= want+want/2500+4*time.Millisecond }
					if want := append([]time.Duration{0}, test.want...); !slices.EqualFunc(waits, want, onTime) {
						w.T.Errorf("the attempts came after %v, want %v", waits, want)
					}
					if !slices.Equal(asked, []int{1, 2}) {
						w.T.Errorf("RetryDelay was asked after the attempts %v", asked)
					}
					w.drained(&q.Consumer)
					if text := log(); !strings.Contains(text, test.log) || strings.Contains(text, "secret") || test.log == "" && strings.Contains(text, "function=RetryDelay") {
						w.T.Errorf("logged:\n%s", text)
					}
				})
			})
		}
	}
}

// The outcome of a handler does not change what its own Ack, Nack or Release has done.
func TestWork_OutcomeAfterTheEndOfTheClaim(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", &coord.QueueOptions[int]{RetryDelay: func(int, error) time.Duration {
			w.T.Error("RetryDelay was asked")
			return 0
		}})
		mustPut(w.T, q, 1, 4)
		ends := []error{coord.Bury(errHandler), coord.RetryAfter(time.Hour, errHandler), errHandler, coord.Bury(nil)}
		x := w.work(q, 1, func(_ context.Context, it *coord.Item[int]) error {
			mustAck(w.T, it)
			return ends[it.Value-1]
		})
		w.Eventually("all are acknowledged", func() bool { return mustLen(w.T, &q.Consumer) == 0 })
		x.finish()
		if d := letters(w.T, &q.Consumer); len(d) != 0 {
			w.T.Errorf("%+v", d)
		}
		w.drained(&q.Consumer)
	})
}

func TestWork_OutcomesWrapTheirCause(t *testing.T) {
	cause := &backendError{"broken"}
	for _, err := range []error{coord.Bury(cause), coord.RetryAfter(time.Second, cause)} {
		var as *backendError
		if !errors.Is(err, cause) || !errors.As(err, &as) || err.Error() != "broken" {
			t.Errorf("%v does not wrap its cause", err)
		}
	}
	for _, err := range []error{coord.Bury(nil), coord.RetryAfter(time.Second, nil)} {
		if err == nil || err.Error() == "" || errors.Unwrap(err) != nil {
			t.Errorf("%v, want an error without a cause", err)
		}
	}
	coordtest.WantErr(t, coord.Bury(coord.ErrDecode), coord.ErrDecode)
}

// backendError is an error with a type.
type backendError struct{ text string }

func (e *backendError) Error() string { return e.text }
