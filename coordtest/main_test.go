package coordtest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a test that must fail, or be skipped.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	messages []string
	skipped  bool
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Context() context.Context  { return r.TB.Context() }
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool              { return len(r.said()) > 0 && !r.skipped }
func (r *recorder) Skipped() bool             { return r.skipped }
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Errorf(f string, a ...any) { r.say(fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.say(fmt.Sprint(a...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.say(fmt.Sprintf(f, a...)); panic(r) }
func (r *recorder) Fatal(a ...any)            { r.say(fmt.Sprint(a...)); panic(r) }
func (r *recorder) Skip(a ...any)             { r.skipped = true; r.Fatal(a...) }

func (r *recorder) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, text)
}

func (r *recorder) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.messages, "\n")
}

// watch runs f as a test of its own, cleanups included, and returns what it said.
func watch(t *testing.T, f func(tb testing.TB)) *recorder {
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		f(r)
	}()
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	return r
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
