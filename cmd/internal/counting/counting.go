// Package counting is what both programs count of what they do, where the settings ask for metrics.
package counting

import (
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/notify"
)

// Counts count what both programs do. The zero value counts nothing: where the settings ask for no metrics, nobody is told
// anything for their sake.
type Counts struct{ in *metrics.Metrics }

// In returns Counts that count in m.
func In(m *metrics.Metrics) Counts {
	m.HookRequests(texts(asg.Requests()), texts(asg.Answers()))
	return Counts{m}
}

func texts[T ~string](all []T) []string {
	words := make([]string, len(all))
	for i, of := range all {
		words[i] = string(of)
	}
	return words
}

// Notice counts what became of a notice in the end.
func (c Counts) Notice(t notify.DeliveryResult) {
	switch {
	case c.in == nil:
	case t.GivenUp:
		c.in.NoticesLost(1 + t.Alike)
	case t.Err == nil:
		c.in.Noticed()
	}
}

// EventsDropped counts Events that were not written.
func (c Counts) EventsDropped(events int) {
	if c.in != nil {
		c.in.EventsDropped(events)
	}
}

// Requested counts a request to the API server.
func (c Counts) Requested(method string, status int) {
	if c.in != nil {
		c.in.Requested(method, status)
	}
}

// HookRequested counts a request about a lifecycle hook.
func (c Counts) HookRequested(what asg.Request, answer asg.Answer) {
	if c.in != nil {
		c.in.HookRequested(string(what), string(answer))
	}
}
