package main

import (
	"context"

	"github.com/nth-project/nth/pkg/notify"
)

// PassOn passes on what a webhook has to tell, and what some other work does, until it is ended.
func PassOn(ctx context.Context, webhook *notify.Webhook, work func(context.Context)) (end func()) {
	n := &notices{webhook: webhook}
	n.passing, n.stop = context.WithCancel(ctx)
	n.work.Go(func() { work(n.passing) })
	return n.begin()
}
