package main_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	nthqueue "github.com/nth-project/nth/cmd/nth-queue"
)

// evictions are under way until the channel is closed.
func evictions() (quiet func() <-chan struct{}, end func()) {
	c := make(chan struct{})
	return func() <-chan struct{} { return c }, func() { close(c) }
}

func TestAnEventWaitsForEvictionsForAWhileAndTheConditionDoesNot(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		hurried bool
		over    time.Duration
		want    time.Duration
	}{
		"an Event, evictions end":          {over: 3 * time.Second, want: 3 * time.Second},
		"an Event, evictions go on":        {over: time.Minute, want: 10 * time.Second},
		"the condition, evictions go on":   {hurried: true, over: time.Minute},
		"an Event after all the evictions": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				quiet, end := evictions()
				time.AfterFunc(row.over, end)
				synctest.Wait()
				began := time.Now()
				if _, err := nthqueue.NewTurns(quiet).Take(t.Context(), row.hurried); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != row.want {
					t.Errorf("it had its turn after %s, want %s", took, row.want)
				}
				time.Sleep(row.over) // The evictions end with the test.
			})
		})
	}
}

func TestFourHaveTheirTurnAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quiet, end := evictions()
		end()
		turns := nthqueue.NewTurns(quiet)
		var last func()
		for range 4 {
			var err error
			if last, err = turns.Take(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := turns.Take(ctx, true); err == nil {
			t.Error("a fifth had its turn, too")
		}
		last()
		if _, err := turns.Take(t.Context(), true); err != nil {
			t.Error(err)
		}
	})
}
