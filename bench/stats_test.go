package main

import (
	"math"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 3, 2, 1}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
	values := []float64{2, 1}
	if median(values); values[0] != 2 {
		t.Error("median sorts its argument")
	}
}

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, c := range []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
		{hundred[:1], 0.99, 1}, {hundred[:10], 0.99, 10}, {nil, 0.5, 0},
	} {
		if got := percentile(c.sorted, c.p); got != c.want {
			t.Errorf("percentile %v of %d is %d, want %d", c.p, len(c.sorted), got, c.want)
		}
	}
}

func TestSummaryKeepsTheSpread(t *testing.T) {
	f := summarize([]sample{{mRate: 3, mTrips: 2.5}, {mRate: 1, mTrips: 2}, {mRate: 8, mTrips: 5}})
	if r := f[mRate]; r.Median != 3 || r.Min != 1 || r.Max != 8 || len(r.Values) != 3 || r.Values[2] != 8 {
		t.Errorf("rate %+v", r)
	}
	if r := f[mTrips]; r.Median != 2.5 || r.Max != 5 {
		t.Errorf("round trips %+v", r)
	}
}

func TestHalfTripsIgnoresWork(t *testing.T) {
	const oneWay = 20 * time.Millisecond
	for d, want := range map[time.Duration]float64{
		3 * time.Millisecond:   0,
		41 * time.Millisecond:  1,
		59 * time.Millisecond:  1,
		61 * time.Millisecond:  1.5,
		135 * time.Millisecond: 3,
	} {
		if got := halfTrips(d, oneWay); got != want {
			t.Errorf("%v is %v round trips, want %v", d, got, want)
		}
	}
}

func TestTimesBecomePercentiles(t *testing.T) {
	s := sample{}
	s.addTimes([]time.Duration{3 * time.Microsecond, time.Microsecond, 2 * time.Microsecond})
	if s[mP50] != 2 || s[mP99] != 3 || s[mMax] != 3 {
		t.Errorf("%v", s)
	}
	empty := sample{}
	if empty.addTimes(nil); len(empty) != 0 {
		t.Errorf("%v of no times", empty)
	}
}
