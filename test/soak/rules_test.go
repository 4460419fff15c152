package soak_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// rules are what nth is to do about what is announced. They may change in the midst of a life.
type rules struct {
	// Interruption, Rebalance, Maintenance and Termination are what is done about each kind.
	Interruption, Rebalance, Maintenance, Termination want
	// Brief tells that a cordon for a recommendation has a time to live.
	Brief bool
}

// traits are how a life is, from its beginning to its end.
type traits struct {
	// Balanced tells that the node is taken out of load balancers while it is closed.
	Balanced bool
	// Returning tells that there is a controller that brings its pods back to the node, closed or not.
	Returning bool
}

const (
	// lead is how long before its window a reboot, a stop or a retirement is acted upon. It is long, so that no window opens in a run.
	lead = 24 * time.Hour
	// spread is the time of a fleet, and share how much later than its first instance begins the one that imdstest plays.
	spread, share = 5 * time.Second, 4 * time.Second
	// margin and grace leave a pod that must be deleted a second, even before the nearest deadline.
	margin = 500 * time.Millisecond
	grace  = time.Second
	// nearest and farthest are between now and the time of a spot notice.
	nearest, farthest = 6, 12
	// budget is the time for a termination.
	budget = 8 * time.Second
)

func newTraits(r *rand.Rand) traits {
	return traits{Balanced: r.IntN(2) == 0, Returning: r.IntN(6) == 0}
}

// firstRules are those of a life's beginning: what most people have.
func firstRules(r *rand.Rand) rules {
	rebalance := []want{nothing, cordon, cordon, drain}[r.IntN(4)]
	return rules{
		Interruption: drain, Maintenance: drain,
		Rebalance:   rebalance,
		Brief:       rebalance == cordon && r.IntN(2) == 0,
		Termination: []want{cordon, drain, drain}[r.IntN(3)],
	}
}

// otherRules are any. A termination is never ignored, since how often it is looked for is the measure of time here.
func otherRules(r *rand.Rand) rules {
	likely := []want{drain, drain, drain, cordon, nothing, ignored}
	rebalance := []want{ignored, nothing, cordon, cordon, drain}[r.IntN(5)]
	return rules{
		Interruption: likely[r.IntN(len(likely))],
		Maintenance:  likely[r.IntN(len(likely))],
		Rebalance:    rebalance,
		Brief:        rebalance == cordon && r.IntN(2) == 0,
		Termination:  []want{nothing, cordon, drain, drain}[r.IntN(4)],
	}
}

// settings are the rules in nth's words.
func (r rules) settings(t traits) string {
	action := map[want]string{ignored: "ignore", nothing: "notify", cordon: "cordon", drain: "drain"}
	live := "0s"
	if r.Brief {
		live = "1500ms"
	}
	wait := "0s"
	if t.Balanced {
		wait = "200ms"
	}
	return fmt.Sprintf(`
[imds]
withdrawn_after = "100ms"
[drain]
margin = %q
load_balancer_wait = %q
[events.spot-interruption]
action = %q
[events.rebalance-recommendation]
action = %q
cordon_for = %q
[events.scheduled-maintenance]
action = %q
lead = %q
spread = %q
[events.asg-termination]
action = %q
budget = %q
`, margin, wait, action[r.Interruption], action[r.Rebalance], live, action[r.Maintenance], lead, spread, action[r.Termination], budget)
}

// of is what is done about a kind.
func (r rules) of(kind event.Kind) want {
	return map[event.Kind]want{
		event.SpotInterruption: r.Interruption, event.RebalanceRecommendation: r.Rebalance,
		event.ScheduledMaintenance: r.Maintenance, event.ASGTermination: r.Termination,
	}[kind]
}

// wants is what nth does about a notice with these rules, by docs/events.md.
func (r rules) wants(n *notice) want {
	most := r.of(n.kind)
	switch n.kind {
	case event.SpotInterruption:
		if n.code == "hibernate" {
			return min(most, cordon)
		}
	case event.ScheduledMaintenance:
		switch n.code {
		case "instance-stop", "instance-retirement", "system-reboot", "instance-reboot":
		default:
			return min(most, nothing)
		}
	case event.RebalanceRecommendation, event.ASGTermination, event.Shutdown:
	}
	return most
}

// brief tells whether the cordon for a notice has a time to live.
func (r rules) brief(n *notice) bool { return n.kind == event.RebalanceRecommendation && r.Brief }
