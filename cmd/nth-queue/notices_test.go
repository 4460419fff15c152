package main_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
)

func TestAStopWaitsForThoseWhoTellAndOnlyForAMoment(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		outbox, _ := record.OpenOutbox(dir)
		hangs := make(chan struct{})
		end := queue.PassOn(t.Context(), notify.NewWebhook(notify.WebhookOptions{Outbox: outbox}), func(context.Context) { <-hangs })
		began := time.Now()
		if end(); time.Since(began) != 5*time.Second {
			t.Errorf("it took %s", time.Since(began))
		}
		close(hangs)
	})
}
