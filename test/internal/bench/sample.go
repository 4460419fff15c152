package bench

import (
	"slices"
	"time"
)

// A sample is the same thing measured several times.
type sample []time.Duration

// median is the middle one, in seconds, or the mean of the two in the middle.
func (s sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]).Seconds() / 2
}

// worst is the longest, in seconds.
func (s sample) worst() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Max(s).Seconds()
}
