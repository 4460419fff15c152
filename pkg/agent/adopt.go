package agent

import (
	"context"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
)

// adoptPause is how long to wait before the Node is asked again whose cordon it bears.
const adoptPause = 5 * time.Second

// adopt asks the Node once, as soon as it can be asked, whether it bears a cordon of ours. If the record has been lost,
// that is how it is found again.
func (a *Agent) adopt(ctx context.Context) {
	for {
		claim, ours, err := a.cfg.Node.Claim(ctx)
		if err == nil {
			if ours {
				a.inbox.put(adopted{claim: claim})
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(adoptPause):
		}
	}
}

// adoptClaim takes a cordon of ours into the record that it does not know of.
func (a *Agent) adoptClaim(claim drain.Claim) {
	for _, e := range a.cfg.Record.Entries() {
		if e.Event.ID == claim.Event {
			return
		}
	}
	e := record.Entry{
		Event:  event.Event{ID: claim.Event, Kind: event.Kind(claim.Kind)},
		Phase:  record.Cordoned,
		BootID: claim.BootID, FirstSeen: claim.Since, Changed: a.now(), CordonedAt: claim.Since,
		Cordon: true,
		// A claim does not say what is announced, so nothing new is begun for it until its source says so; if it does not,
		// the cordon is lifted in time.
		Missing: a.now(),
	}
	a.put(e)
	a.foundClaim(e)
}
