package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// withdrawnSoon takes a notice that is missing for a second as withdrawn.
const withdrawnSoon = "[imds]\nwithdrawn_after = \"1s\"\n"

// withdrawSpot takes the notice back, and waits until nth is through with it.
func (s *stage) withdrawSpot(t *testing.T) {
	t.Helper()
	s.imds.ClearSpot()
	s.nth.WaitWatching(t, s.node.Name)
}

// drainDownTo starts nth, and lets it drain the node for a spot notice until only the pods of a workload are left, which
// its disruption budget holds.
func (s *stage) drainDownTo(t *testing.T, app string) {
	t.Helper()
	s.start(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitSays(t, "disruption budget "+app+" blocks the eviction of ")
	s.waitLeft(t, app)
}

// mustBeClosed fails the test unless nth remembers the one event of the kind as over, for that reason.
func (s *stage) mustBeClosed(t *testing.T, kind event.Kind, ending state.Ending) {
	t.Helper()
	if e := s.machine.RecordOf(t, kind); e.Phase != state.Closed || e.Ending != ending || e.OnNode {
		t.Errorf("nth remembers the event as %s, %q, with a cordon: %t; want %s, %q, without", e.Phase, e.Ending, e.OnNode, state.Closed, ending)
	}
}

func TestANoticeThatIsWithdrawnInMidDrainSavesThePodsThatAreLeft(t *testing.T) {
	s := prepare(t, withdrawnSoon)
	s.node.AddDeployment(t, "web", 1, lab.MinAvailable(1))
	s.drainDownTo(t, "web")

	s.withdrawSpot(t)
	s.waitPodsBack(t)
	s.stopAfterLooks(t)
	s.mustSayNothingOf(t, systemd.Drained, systemd.DrainIncomplete)
	s.mustBeClosed(t, event.SpotInterruption, state.Withdrawn)
	s.mustKeep(t, "web-", 1)
}

func TestAnAdministratorWhoUncordonsIsNotFought(t *testing.T) {
	s := play(t, withdrawnSoon)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)

	s.node.Uncordon(t)
	s.waitPodsBack(t)
	s.before = s.podIDs(t)
	s.looks(t, spotDocument, 4)
	s.withdrawSpot(t)
	s.stopAfterLooks(t)

	s.mustKeepPods(t)
	s.mustBeSchedulable(t)
	s.mustSayOnce(t, systemd.Drained)
	s.mustBearNoClaim(t)
}

func TestUncordon_InMidDrainIsKeptByTheNextProcess(t *testing.T) {
	s := prepare(t, "")
	s.node.AddDeployment(t, "web", 1, lab.MinAvailable(1))
	s.drainDownTo(t, "web")
	s.nth.Kill()
	// The API server keeps the time at which a pod is bound in whole seconds.
	c, _ := s.claim(t)
	<-time.After(time.Until(c.Since.Add(1100 * time.Millisecond)))
	written := s.cordonWritten(t)
	s.node.Uncordon(t)
	if now := s.cordonWritten(t); !now.Equal(written) {
		t.Errorf("since people have uncordoned the node, our cordon was written at %s, not at %s", now, written)
	}
	s.waitPodsBack(t)
	back := s.podIDs(t)

	s.start(t)
	s.nth.WaitSays(t, "someone uncordoned the node during this event")
	s.nth.WaitSays(t, "disruption budget web blocks the eviction of ")
	s.node.Scale(t, "web", 0)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
	s.mustBeSchedulable(t)
	for _, pod := range s.node.Pods(t) {
		if !slices.Contains(back, pod.UID) {
			t.Errorf("pod %s is new", pod.Name)
		}
	}
	s.mustKeep(t, "regular-", 1)
}

// cordonWritten is when nth has written the cordon, by the managed fields.
func (s *stage) cordonWritten(t *testing.T) time.Time {
	t.Helper()
	for _, m := range s.node.Object(t).ManagedFields {
		if m.Manager == "nth" && m.Subresource == "" {
			return m.Time.Time
		}
	}
	t.Fatal("the Node has no fields that nth has written")
	return time.Time{}
}

func TestALostRecordIsFoundAgainOnTheNode(t *testing.T) {
	s := play(t, withdrawnSoon)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.nth.Stop(t)

	s.machine.Forget(t)
	s.imds.ClearSpot()
	s.start(t)
	s.nth.WaitSays(t, "adopting nth's own cordon")
	s.waitPodsBack(t)
	s.nth.WaitLog(t, systemd.Uncordoned)
}
