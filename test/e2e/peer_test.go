package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// The tests in this file are the container-based handler's own end-to-end tests for the metadata service, with their
// numbers. What number 3 asks for, that Events and the journal have it all, is judged with number 15 and in test/packages. "Evicted" means there that the Deployment's only pod has no node any more, and "kept" that it is where it was.
//
// That handler can taint the node, which a kubelet's credential is not allowed to. nth has no such setting. What the
// tests ask of taints is left out; that no pod comes back is asked for instead, and the cordon sees to it.

// Settings of single tests.
const (
	dryRun           = "dry_run = true\n"
	rebalanceCordons = "[events.rebalance-recommendation]\naction = \"cordon\"\n"
	rebalanceDrains  = "[events.rebalance-recommendation]\naction = \"drain\"\n"
	spotIgnored      = "[events.spot-interruption]\naction = \"ignore\"\n"
	spotCordons      = "[events.spot-interruption]\naction = \"cordon\"\n"
)

// reboot is a reboot that EC2 has planned.
func reboot(in time.Duration) imdstest.MaintenanceEvent {
	return imdstest.MaintenanceEvent{
		EventId: "instance-event-0d59937288b749b32", Code: "system-reboot",
		NotBefore: time.Now().Add(in), NotAfter: time.Now().Add(in + 2*time.Hour),
	}
}

func TestPeer01SpotInterruptionCordonsAndEvicts(t *testing.T) {
	s := play(t, "")
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	if pods := s.node.Pods(t); len(pods) != 0 {
		t.Errorf("pod %s is on the node, want none to have come back", pods[0].Name)
	}
}

// The original has a test for each document: 02, 09 and 11.
func TestPeer02_DryRunTouchesNothing(t *testing.T) {
	t.Parallel()
	for name, announce := range map[string]func(*imdstest.Server){
		"a spot interruption":        func(imds *imdstest.Server) { imds.SetSpot("terminate", twoMinutes()) },
		"a rebalance recommendation": func(imds *imdstest.Server) { imds.SetRebalance(time.Now()) },
		"maintenance":                func(imds *imdstest.Server) { imds.AddMaintenance(reboot(5 * time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := play(t, dryRun+rebalanceDrains)
			announce(s.imds)
			s.mustOnlyTalk(t)
		})
	}
}

// mustOnlyTalk waits until nth says what it would have done, and sees to it that it did not.
func (s *stage) mustOnlyTalk(t *testing.T) {
	t.Helper()
	s.nth.WaitSays(t, "would have been cordoned and drained of 1 pod")
	s.nth.WaitStatus(t, "(dry run)")
	s.stopAfterLooks(t)
	s.mustBeUntouched(t)
	s.mustSayOnce(t, systemd.Drained)
}

// The original runs the handler in the pod network, from where it must find a metadata service that has another address
// and a name. nth is a program of the host and has no such mode; what remains is a service that is found by name.
func TestPeer04SpotInterruptionFromAServiceThatHasAName(t *testing.T) {
	s := prepare(t, "")
	s.options.IMDS = strings.Replace(s.imds.URL, "127.0.0.1", "localhost", 1)
	s.machine.Configure(t, s.options)
	s.start(t)
	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
}

// The metadata service of these tests never answers without a session token, so every one of them judges this. This one
// adds that nth does not try, and the announcements of all other documents, as in the original.
func TestPeer05SessionTokensOnly(t *testing.T) {
	s := play(t, rebalanceDrains)
	s.imds.SetSpot("terminate", twoMinutes())
	s.imds.SetRebalance(time.Now())
	s.imds.AddMaintenance(reboot(5 * time.Minute))
	s.imds.SetLifecycleState("Terminated")
	s.waitDrained(t)
	s.stopAfterLooks(t)

	requests := s.imds.Requests()
	if requests.Tokens == 0 {
		t.Errorf("nth asked for no session token")
	}
	if refused := requests.ByStatus[401]; refused != 0 {
		t.Errorf("nth asked %d times without a good session token, want never", refused)
	}
}

func TestPeer06CordonOnlyKeepsThePod(t *testing.T) {
	s := play(t, spotCordons)
	s.imds.SetSpot("terminate", twoMinutes())
	s.node.WaitCordoned(t)
	s.nth.WaitLog(t, systemd.Cordoned)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	s.mustKeepPods(t)
	if phase := s.machine.RecordOf(t, event.SpotInterruption).Phase; phase != state.Cordoned {
		t.Errorf("nth remembers the node as %s, want %s", phase, state.Cordoned)
	}
}

func TestPeer07RebalanceRecommendationCordonsAndTheNoticeDrains(t *testing.T) {
	s := play(t, rebalanceCordons)
	s.imds.SetRebalance(time.Now())
	s.node.WaitCordoned(t)
	s.nth.WaitLog(t, systemd.Cordoned)
	s.looks(t, rebalanceDocument, 4)
	s.mustKeepPods(t)

	s.imds.SetSpot("terminate", twoMinutes())
	s.waitDrained(t)
}

func TestPeer08RebalanceRecommendationDrains(t *testing.T) {
	s := play(t, rebalanceDrains+spotIgnored)
	s.imds.SetRebalance(time.Now())
	s.waitDrained(t)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	if n := s.imds.Requests().ByPath[spotDocument]; n != 0 {
		t.Errorf("nth looked %d times for the spot notices that it is to ignore", n)
	}
}

// The original drains as soon as a reboot is announced, however far ahead it is. nth waits until it is near.
func TestPeer10MaintenanceDrainsWhenItIsNear(t *testing.T) {
	s := play(t, "")
	s.imds.AddMaintenance(reboot(24 * time.Hour))
	s.nth.WaitLog(t, systemd.EventSeen)
	s.looks(t, maintenanceDocument, 4)
	s.mustBeUntouched(t)

	s.imds.AddMaintenance(reboot(5 * time.Minute))
	s.waitDrained(t)
}

// That the announcement is missing is not what undoes the drain here: nth waits an hour before it believes that.
func TestPeer12MaintenanceThatIsCanceledIsUndone(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]func(*imdstest.Server, imdstest.MaintenanceEvent){
		// As the original's metadata service does it.
		"where it was announced": func(imds *imdstest.Server, ev imdstest.MaintenanceEvent) {
			ev.State = "canceled"
			imds.SetMaintenance(ev)
		},
		// As EC2 documents it.
		"in the history": func(imds *imdstest.Server, ev imdstest.MaintenanceEvent) {
			imds.WithdrawMaintenance(ev.EventId, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := play(t, "")
			ev := s.imds.AddMaintenance(reboot(5 * time.Minute))
			s.waitDrained(t)

			cancel(s.imds, ev)
			s.waitPodsBack(t)
			s.nth.WaitLog(t, systemd.Uncordoned)
			s.stopAfterLooks(t)
			s.mustBearNoClaim(t)
			s.mustBeClosed(t, event.ScheduledMaintenance, state.Canceled)
		})
	}
}

// As in the original, there is no metadata service any more when the machine is back.
func TestPeer13MaintenanceIsUndoneAfterTheReboot(t *testing.T) {
	s := play(t, "")
	s.imds.AddMaintenance(reboot(5 * time.Minute))
	s.waitDrained(t)
	s.nth.Stop(t)
	s.mustBeCordoned(t)

	s.machine.Reboot(t)
	s.imds.Close()
	s.start(t)
	s.waitPodsBack(t)
	s.nth.WaitLog(t, systemd.Uncordoned)
	s.nth.Stop(t)
	s.mustSayNothingOf(t, systemd.DrainStarted)
}

func TestPeer14AutoScalingTerminationDrains(t *testing.T) {
	s := play(t, "")
	s.imds.SetLifecycleState("InService")
	s.looks(t, lifecycleDocument, 4)
	s.mustBeUntouched(t)

	s.imds.SetLifecycleState("Terminated")
	s.waitDrained(t)
	s.stopAfterLooks(t)
	s.mustBeCordoned(t)
	s.mustSayOnce(t, systemd.Drained)
}
