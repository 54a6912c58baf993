package main

import (
	"math"
	"slices"
	"time"
)

// A figure is a metric over the rounds of a cell.
type figure struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Values []float64 `json:"values"` // in the order of the rounds
}

// summarize computes the figures of a cell from its samples.
func summarize(samples []sample) map[metric]figure {
	values := make(map[metric][]float64)
	for _, s := range samples {
		for m, v := range s {
			values[m] = append(values[m], v)
		}
	}
	figures := make(map[metric]figure, len(values))
	for m, vs := range values {
		f := figure{Median: median(vs), Min: slices.Min(vs), Max: slices.Max(vs), Values: vs}
		figures[m] = f
	}
	return figures
}

// median returns the middle of values, the mean of the two middle ones for an even number,
// and NaN for none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// percentile returns the smallest of the sorted times that is not below the fraction p of
// them.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// addTimes adds the percentiles of times to a sample. It sorts times.
func (s sample) addTimes(times []time.Duration) {
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	s[mP50] = micros(percentile(times, 0.50))
	s[mP90] = micros(percentile(times, 0.90))
	s[mP99] = micros(percentile(times, 0.99))
	s[mMax] = micros(times[len(times)-1])
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// halfTrips converts a time to round trips, in steps of one way: the remainder is work and
// not distance. It is exact if all the work takes less than one way.
func halfTrips(d, oneWay time.Duration) float64 { return float64(d/oneWay) / 2 }
