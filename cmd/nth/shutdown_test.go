package main_test

import (
	"testing"
	"time"

	main "github.com/nth-project/nth/cmd/nth"
)

// A drop-in with TimeoutStopSec=infinity does not make EC2 wait.
func TestStopJob_DrainsForNoLongerThanEC2Leaves(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		20 * time.Second: 10 * time.Second, 90 * time.Second: 55 * time.Second, 180 * time.Second: 145 * time.Second,
		10 * time.Minute: 145 * time.Second, 24 * time.Hour: 145 * time.Second,
	} {
		if got := main.StopWithin(timeout); got != want {
			t.Errorf("of %s it drains for %s, want %s", timeout, got, want)
		}
	}
}
