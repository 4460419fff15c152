package e2e

import (
	"strings"
	"testing"
	"time"
)

// byHand runs "nth drain", which has to end well, and returns what it says.
func (s *stage) byHand(t *testing.T, args ...string) string {
	t.Helper()
	got := s.machine.Command(t, append([]string{"drain"}, args...)...)
	if got.Status != 0 || got.Stderr != "" {
		t.Errorf("nth drain %q ended with %d\n%s%s", args, got.Status, got.Stdout, got.Stderr)
	}
	return got.Stdout
}

// The daemon has cordoned the node before, and its event ends after people have had the node drained.
func TestANodeThatIsDrainedByHandStaysClosedUntilPeopleOpenIt(t *testing.T) {
	s := play(t, rebalanceCordons+"[imds]\nwithdrawn_after = \"1s\"\n")
	s.imds.SetRebalance(time.Now())
	s.node.WaitCordoned(t)
	said := s.byHand(t, "--deadline", "1m")
	if !strings.Contains(said, " s  cordoned the node after ") || !strings.Contains(said, "is drained: 1 pod evicted") {
		t.Errorf("it says\n%s", said)
	}
	s.node.WaitEmpty(t)
	s.imds.ClearRebalance()
	s.nth.WaitWatching(t, s.node.Name)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	if claim, ok := s.claim(t); !ok || claim.Writer != "nth-drain" {
		t.Errorf("the node bears %+v, want the claim of nth-drain", claim)
	}
	if said := s.byHand(t, "--undo"); !strings.Contains(said, "takes pods again") {
		t.Errorf("it says\n%s", said)
	}
	s.mustBeSchedulable(t)
	s.mustBearNoClaim(t)
}
