package main_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
)

// The disk that the file of metrics is on may be gone, for example.
func TestAStopWaitsForThoseWhoTellAndOnlyForAMoment(t *testing.T) {
	ended := errors.New("ended")
	run := func(context.Context) error { return ended }
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := nth.Around(func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second) }, run)(t.Context())
		if took := time.Since(began); !errors.Is(err, ended) || took != time.Second {
			t.Errorf("with a last word it took %s, %v", took, err)
		}
		began, hangs := time.Now(), make(chan struct{})
		err = nth.Around(func(context.Context) { <-hangs }, run)(t.Context())
		if took := time.Since(began); !errors.Is(err, ended) || took != 5*time.Second {
			t.Errorf("with one that hangs it took %s, %v", took, err)
		}
		close(hangs)
	})
}
