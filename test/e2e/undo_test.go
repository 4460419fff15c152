package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
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

func TestAWithdrawnNoticeIsUndone(t *testing.T) {
	s := play(t, withdrawnSoon)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)

	s.withdrawSpot(t)
	s.waitPodsBack(t)
	s.stopAfterLooks(t)
	s.mustBearNoClaim(t)
	s.mustBeClosed(t, event.SpotInterruption, state.Withdrawn)
}

func TestANoticeThatIsMissingForAMomentIsNotUndone(t *testing.T) {
	s := play(t, "[imds]\nwithdrawn_after = \"1h\"\n")
	at := twoMinutes()
	s.imds.SetSpot("terminate", at)
	s.waitDrained(t)
	s.imds.ClearSpot()
	s.nth.WaitSays(t, "no longer announced; waiting to confirm")
	s.imds.SetSpot("terminate", at)
	s.stopAfterLooks(t)

	s.mustBeCordoned(t)
	s.mustSayNothingOf(t, systemd.Uncordoned)
	s.mustSayOnce(t, systemd.Drained)
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

func TestARebalanceCordonHasATimeToLive(t *testing.T) {
	s := play(t, rebalanceCordons+"cordon_for = \"1s\"\n")
	s.imds.SetRebalance(time.Now())
	s.nth.WaitLog(t, systemd.Cordoned)
	s.nth.WaitLog(t, systemd.Uncordoned)
	s.node.WaitUncordoned(t)
	s.stopAfterLooks(t)
	s.mustSayOnce(t, systemd.Cordoned)
	s.mustBeSchedulable(t)
	s.mustKeepPods(t)
	s.mustBeClosed(t, event.RebalanceRecommendation, state.Expired)
}

func TestACordonByAnAdministratorIsRespectedAndNeverLifted(t *testing.T) {
	s := play(t, withdrawnSoon)
	s.node.Cordon(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.node.WaitEmpty(t)
	s.nth.WaitLog(t, systemd.CordonForeign)
	s.nth.WaitLog(t, systemd.Drained)
	s.mustBearNoClaim(t)

	s.withdrawSpot(t)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	s.mustSayNothingOf(t, systemd.Uncordoned)
	s.mustBeClosed(t, event.SpotInterruption, state.Withdrawn)
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

func TestAnAdministratorWhoUncordonsInMidDrainIsNotFoughtByTheNextProcess(t *testing.T) {
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

// Our annotation is still there, since nth does not look at its node while nothing is to be done.
func TestACordonThatAnAdministratorSetsAfterLiftingOursIsNeverLifted(t *testing.T) {
	s := play(t, withdrawnSoon)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.node.Uncordon(t)
	s.node.Cordon(t)
	if _, ok := s.claim(t); !ok {
		t.Fatal("the node bears no claim any more, so that this is no test")
	}

	s.withdrawSpot(t)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	s.mustBearNoClaim(t)
	s.mustBeClosed(t, event.SpotInterruption, state.Withdrawn)
}

func TestOneCordonServesTwoEventsUntilBothAreOver(t *testing.T) {
	s := play(t, withdrawnSoon)
	ev := s.imds.AddMaintenance(reboot(5 * time.Minute))
	s.waitDrained(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitStatus(t, "is drained for spot-interruption")

	s.imds.WithdrawMaintenance(ev.EventId, false)
	s.nth.WaitSays(t, "scheduled-maintenance: canceled; nothing to undo")
	s.looks(t, maintenanceDocument, 4)
	s.mustBeCordoned(t)
	s.mustSayNothingOf(t, systemd.Uncordoned)

	s.withdrawSpot(t)
	s.waitPodsBack(t)
}

// ends are the ways in which a process of nth ends.
var ends = map[string]func(*daemon.Daemon, *testing.T){
	"stopped": func(d *daemon.Daemon, t *testing.T) { d.Stop(t) },
	"killed":  func(d *daemon.Daemon, _ *testing.T) { d.Kill() },
}

// Whatever is announced, and whatever was done, a new process of nth changes nothing by itself.
func TestARestartChangesNothing(t *testing.T) {
	t.Parallel()
	t.Run("of a node for which nothing is announced", func(t *testing.T) {
		s := play(t, "")
		s.nth.Stop(t)
		s.start(t)
		s.nth.WaitStatus(t, "watching; nothing is announced")
		s.stopAfterLooks(t)
		s.mustBeUntouched(t)
	})
	t.Run("of a node that an administrator has cordoned", func(t *testing.T) {
		s := play(t, "")
		s.nth.Stop(t)
		s.node.Cordon(t)
		s.start(t)
		s.nth.WaitStatus(t, "watching; nothing is announced")
		s.stopAfterLooks(t)
		s.mustBeCordoned(t)
		s.mustKeepPods(t)
	})
	for name, end := range ends {
		t.Run("of a drained node, by an nth that was "+name, func(t *testing.T) {
			s := play(t, "")
			s.imds.SetSpot("terminate", twoMinutes())
			s.waitDrained(t)
			end(s.nth, t)

			s.start(t)
			s.nth.WaitStatus(t, "is drained for spot-interruption")
			s.stopAfterLooks(t)
			s.mustBeCordoned(t)
			s.mustSayNothingOf(t, systemd.DrainStarted, systemd.Cordoned, systemd.Uncordoned, systemd.PodEvicted)
		})
	}
}

// As long as the event stands, nth stands guard, whatever became of its process meanwhile.
func TestAPodThatComesToADrainedNodeIsEvictedAlsoByTheNextProcess(t *testing.T) {
	s := play(t, "")
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.node.AddLatePod(t, "late")
	s.nth.WaitSays(t, "evicted "+s.node.Namespace+"/late")
	s.nth.Stop(t)
	s.node.AddLatePod(t, "later")
	s.start(t)
	s.nth.WaitSays(t, "evicted "+s.node.Namespace+"/later")
	s.nth.Stop(t)
	s.mustSayNothingOf(t, systemd.Drained, systemd.Cordoned)
}

func TestARestartInMidDrainGoesOnWithIt(t *testing.T) {
	t.Parallel()
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, "")
			s.node.AddDeployment(t, "web", 1, lab.MinAvailable(1))
			s.node.AddSpare(t)
			s.drainDownTo(t, "web")
			end(s.nth, t)
			s.mustBeCordoned(t)
			if phase := s.machine.RecordOf(t, event.SpotInterruption).Phase; phase != state.Draining {
				t.Errorf("nth remembers the node as %s, want %s", phase, state.Draining)
			}

			s.start(t)
			s.nth.WaitSays(t, "disruption budget web blocks the eviction of ")
			s.node.Scale(t, "web", 2)
			s.waitDrained(t)
			s.nth.Stop(t)
			s.mustSayNothingOf(t, systemd.CordonForeign) // it is still its own
			if c, ok := s.claim(t); !ok || c.Event != s.machine.RecordOf(t, event.SpotInterruption).Event.ID {
				t.Errorf("the node bears the claim %+v, %t", c, ok)
			}
		})
	}
}

func TestALostRecordIsFoundAgainOnTheNode(t *testing.T) {
	s := play(t, withdrawnSoon)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.nth.Stop(t)

	s.machine.Forget(t)
	s.imds.ClearSpot()
	s.start(t)
	s.nth.WaitSays(t, "adopting our cordon")
	s.waitPodsBack(t)
	s.nth.WaitLog(t, systemd.Uncordoned)
}
