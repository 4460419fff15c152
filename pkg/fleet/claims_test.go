package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
)

func TestAClaimOfAnotherHoldsForThirtySecondsWhateverItsClockSays(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ahead time.Duration
		dead  bool
		holds time.Duration
	}{
		"its clock is right":          {0, false, 30 * time.Second},
		"its clock is an hour ahead":  {time.Hour, false, 30 * time.Second},
		"its clock is an hour behind": {-time.Hour, false, 30 * time.Second},
		"its holder is no more":       {time.Hour, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				seen := time.Now()
				r := newRig(t, func(o *fleet.Options) { o.Dead = func(string) bool { return row.dead } },
					nodeOf("a", instance, claimed("other/space/2", seen.Add(30*time.Second+row.ahead))))
				m := newParcel()
				r.Take(interruption(instance, event.SpotInterruption), 1, m)
				m.want(t, "done")
				if held := time.Since(seen).Truncate(time.Second); held != row.holds {
					t.Errorf("another's claim held for %s, want %s", held, row.holds)
				}
			})
		})
	}
}

func TestWhatWaitsForAClaimOfAnotherIsGivenBackAtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nodeOf("a", instance, claimed("other/space/2", time.Now().Add(30*time.Second))))
	m := newParcel()
	r.Take(interruption(instance, event.SpotInterruption), 1, m)
	eventually(t, "it has its place", func() bool { return r.Standing().Draining == 1 })
	r.stop()
	m.want(t, "returned")
	if told := r.ear.whats("a"); len(told) > 0 {
		t.Errorf("under another's claim was told %v", told)
	}
}
