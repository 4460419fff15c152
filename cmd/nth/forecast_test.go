package main_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/evict"
)

func TestForecast_HourlyAndSoonerAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, looks, told := time.Now(), []time.Duration{}, []time.Duration{}
		failing := false
		var mu sync.Mutex // of what both sides use
		look := func(context.Context) (evict.Forecast, error) {
			mu.Lock()
			defer mu.Unlock()
			looks = append(looks, time.Since(began))
			if failing {
				return evict.Forecast{}, errors.New("the API server does not answer")
			}
			return evict.Forecast{Needs: 94 * time.Second, Pods: []evict.Foreseen{{Grace: 2, Gets: 1}, {Grace: 2, Gets: 1}, {Grace: 1, Gets: 1}, {Grace: 2, Gets: 1}}}, nil
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go nth.Forecasting(ctx, look, func(needs time.Duration, cut int) {
			if needs != 94*time.Second || cut != 3 {
				t.Errorf("told %s and %d", needs, cut)
			}
			mu.Lock()
			defer mu.Unlock()
			told = append(told, time.Since(began))
		})
		mu.Lock()
		defer mu.Unlock()
		pass := func(d time.Duration) {
			mu.Unlock()
			defer mu.Lock()
			time.Sleep(d)
			synctest.Wait()
		}

		pass(70 * time.Second)
		if len(told) != 1 || told[0] < 50*time.Second {
			t.Errorf("after a minute it was told at %s, want once", told)
		}
		pass(24 * time.Hour)
		if len(told) < 22 || len(told) > 27 || !slices.Equal(told, looks) {
			t.Errorf("after a day it was told %d times, and looked %d times", len(told), len(looks))
		}
		failing, looks = true, nil
		pass(3 * time.Hour)
		if n := len(looks); n < 10 || n > 20 {
			t.Errorf("it looked %d times in three hours of an outage", n)
		}
		failing, told = false, nil
		pass(12 * time.Minute)
		if len(told) != 1 {
			t.Errorf("after an outage it was told %d times", len(told))
		}
	})
}
