//go:build linux

package faulttest

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// figures are the measurements of a test's rounds.
type figures[T int | float64 | time.Duration] []T

func (f *figures[T]) add(v T) { *f = append(*f, v) }

func (f figures[T]) sorted() figures[T] { return slices.Sorted(slices.Values(f)) }

func (f figures[T]) min() T    { return slices.Min(f) }
func (f figures[T]) max() T    { return slices.Max(f) }
func (f figures[T]) median() T { return f.sorted()[len(f)/2] }

// quartile returns the lower quartile: the cost without disturbance by the machine.
func (f figures[T]) quartile() T { return f.sorted()[len(f)/4] }

func (f figures[T]) mean() float64 {
	sum := 0.0
	for _, v := range f {
		sum += float64(v)
	}
	return sum / float64(len(f))
}

func (f figures[T]) String() string {
	if len(f) == 0 {
		return "nothing measured"
	}
	return fmt.Sprintf("min %s, median %s, max %s", show(f.min()), show(f.median()), show(f.max()))
}

func show[T int | float64 | time.Duration](v T) string {
	switch v := any(v).(type) {
	case time.Duration:
		return v.Round(time.Millisecond / 10).String()
	case float64:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprint(v)
}

func TestFigures(t *testing.T) {
	var f figures[time.Duration]
	for _, v := range []time.Duration{5, 1, 3, 2, 4} {
		f.add(v * time.Second)
	}
	if got, want := f.String(), "min 1s, median 3s, max 5s"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if q := f.quartile(); q != 2*time.Second {
		t.Errorf("quartile %v, want 2s", q)
	}
}
