package pace

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// said is a test that records what a meter says of it.
type said struct {
	testing.TB
	text string
}

func (s *said) Helper()                        {}
func (s *said) Logf(format string, a ...any)   { s.text += "log: " + fmt.Sprintf(format, a...) }
func (s *said) Errorf(format string, a ...any) { s.text += "error: " + fmt.Sprintf(format, a...) }

func TestMeter_CountsWhatATurnTakesTooLong(t *testing.T) {
	for _, tt := range []struct {
		name        string
		step        time.Duration
		lasts       time.Duration
		least, most time.Duration // of the time that was lost
	}{
		{"a machine without other work", 0, 3 * time.Second, 0, 0},
		{"a server that answers in time", 5 * time.Millisecond, 3 * time.Second, 0, 0},
		{"a slow server", 990 * time.Millisecond, 3*time.Second + time.Millisecond, 2900 * time.Millisecond, 3 * time.Second},
		{"a turn that has not ended", time.Minute, 3 * time.Second, 2900 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := Start(t, func() { time.Sleep(tt.step) })
				time.Sleep(tt.lasts)
				if lost := m.Lost(); lost < tt.least || lost > tt.most {
					t.Errorf("%v were lost, want %v to %v", lost, tt.least, tt.most)
				}
			})
		})
	}
}

func TestMeter_JudgesWithoutTheLostTime(t *testing.T) {
	for _, tt := range []struct {
		step, bound time.Duration
		want        string
	}{
		{0, 3 * time.Second, ""},
		{0, 2 * time.Second, "error: it took 3s, bound 2s"},
		{time.Second, 2 * time.Second, "log: not judged: it took 3s, bound 2s"},
		{12 * time.Millisecond, 2 * time.Second, "error: it took 3s, bound 2s"}, // not enough was lost
	} {
		synctest.Test(t, func(t *testing.T) {
			x := &said{TB: t}
			m := Start(x, func() { time.Sleep(tt.step) })
			time.Sleep(3 * time.Second)
			m.Within(tt.bound, "it")
			if !strings.HasPrefix(x.text, tt.want) || tt.want == "" && x.text != "" {
				t.Errorf("step %v, bound %v: %q, want %q", tt.step, tt.bound, x.text, tt.want)
			}
		})
	}
}
