package agent

import (
	"sync"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
)

// inbox gathers news from all goroutines for the one that decides. Putting never blocks.
type inbox struct {
	mu    sync.Mutex
	news  []any
	ready chan struct{}
}

// The news, besides event.Snapshot and drain.Progress.
type (
	lookFailed struct {
		kind event.Kind
		err  error
	}
	identity struct {
		node string
		err  error
	}
	landed struct {
		step     policy.Step
		cordon   drain.CordonResult
		result   drain.Result
		uncordon drain.UncordonResult
		err      error
		// calledBack tells that the step was stopped by us, and timedOut that its deadline ended it.
		calledBack, timedOut bool
	}
	adopted     struct{ claim drain.Claim }
	order       struct{ rules policy.Settings }
	sourceEnded struct{ err error }
)

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (i *inbox) put(n any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.news = append(i.news, n)
	select {
	case i.ready <- struct{}{}:
	default:
	}
}

func (i *inbox) empty() []any {
	i.mu.Lock()
	defer i.mu.Unlock()
	news := i.news
	i.news = nil
	return news
}

// Snapshot implements event.Sink.
func (i *inbox) Snapshot(s event.Snapshot) { i.put(s) }

// Trouble implements event.Sink.
func (i *inbox) Trouble(k event.Kind, err error) { i.put(lookFailed{kind: k, err: err}) }
