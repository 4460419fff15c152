package soak_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// rules are how nth is set in a life.
type rules struct {
	// Rebalance is what is done about a recommendation, and Brief tells that a cordon for it has a time to live.
	Rebalance want
	Brief     bool
	// Termination is what is done about one by an Auto Scaling group.
	Termination want
}

const (
	// lead is how long before its window a reboot is acted upon. It is long, so that no window opens in a run.
	lead = 24 * time.Hour
	// margin and grace leave a pod that must be deleted a second, even before the nearest deadline.
	margin = 500 * time.Millisecond
	grace  = time.Second
	// nearest and farthest are between now and the time of a spot notice.
	nearest, farthest = 6, 12
	// budget is the time for a termination.
	budget = 8 * time.Second
)

func newRules(r *rand.Rand) rules {
	rebalance := []want{nothing, cordon, cordon, drain}[r.IntN(4)]
	return rules{
		Rebalance:   rebalance,
		Brief:       rebalance == cordon && r.IntN(2) == 0,
		Termination: []want{cordon, drain, drain}[r.IntN(3)],
	}
}

// settings are the rules in nth's words.
func (r rules) settings() string {
	action := map[want]string{nothing: "notify", cordon: "cordon", drain: "drain"}
	live := "0s"
	if r.Brief {
		live = "1500ms"
	}
	return fmt.Sprintf(`
[drain]
margin = %q
volume_wait = "0s"
[events.spot-interruption]
withdrawn_after = "1s"
[events.rebalance-recommendation]
action = %q
cordon_for = %q
withdrawn_after = "1s"
[events.scheduled-maintenance]
lead = %q
withdrawn_after = "1s"
[events.asg-termination]
action = %q
budget = %q
withdrawn_after = "1s"
`, margin, action[r.Rebalance], live, lead, action[r.Termination], budget)
}

// wants is what nth does about a notice with these rules, by docs/events.md.
func (r rules) wants(n *notice) want {
	switch n.kind {
	case event.SpotInterruption:
		if n.code == "hibernate" {
			return cordon
		}
		return drain
	case event.RebalanceRecommendation:
		return r.Rebalance
	case event.ASGTermination:
		return r.Termination
	case event.ScheduledMaintenance:
		switch n.code {
		case "instance-stop", "instance-retirement", "system-reboot", "instance-reboot":
			return drain
		}
	case event.Shutdown:
	}
	return nothing
}
