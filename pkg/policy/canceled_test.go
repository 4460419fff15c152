package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// EC2 lists a canceled event for a while, and the cordon cannot be lifted yet. Nothing is news meanwhile.
func TestACanceledEventIsNotWrittenAtEachLookWhileItsCordonIsLifted(t *testing.T) {
	ev := maintenance("m", "instance-stop", 2*time.Hour)
	ev.State = event.Canceled
	e := entry(ev, state.Undoing, listedHere, cordoned(-10*time.Minute), seenAt(-10*time.Minute), begun(-time.Minute))
	sit := policy.Situation{Now: noon, BootID: thisBoot, Up: time.Hour, Past: past(e), Known: known(ev)}
	for range 3 {
		if changed := fleet().Fold(sit); len(changed) > 0 {
			t.Errorf("at %s, the record is written: %s, seen %s", sit.Now.Sub(noon), describeEntries(changed), changed[0].FirstSeen.Sub(noon))
			sit.Past = past(changed[0])
		}
		sit.Now = sit.Now.Add(time.Second)
	}
}
