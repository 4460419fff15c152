package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// told is what "nth status --json" prints.
type told struct {
	State string `json:"state"`
	Why   string `json:"why"`
	state.Status
}

// status runs "nth status --json", and fails the test unless the exit status goes with the state.
func (s *stage) status(t *testing.T) told {
	t.Helper()
	got := s.machine.Command(t, "status", "--json")
	var found told
	if err := json.Unmarshal([]byte(got.Stdout), &found); err != nil {
		t.Fatalf("nth status --json prints no JSON: %v\n%s%s", err, got.Stdout, got.Stderr)
	}
	if (got.Status == 0) != (found.State == "running") {
		t.Errorf("nth status ended with %d in the state %q", got.Status, found.State)
	}
	return found
}

// waitShown asks for the status until it is as wanted. It is written at most once a second.
func (s *stage) waitShown(t *testing.T, what string, wanted func(told) bool) told {
	t.Helper()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		found := s.status(t)
		if wanted(found) {
			return found
		}
		if time.Now().After(limit) {
			t.Fatalf("waiting until the status shows %s: %+v", what, found)
		}
	}
}

func TestTheStatusFollowsADrainAndOutlivesTheDaemon(t *testing.T) {
	s := prepare(t, "[events.rebalance-recommendation]\naction = \"ignore\"\n")
	if before := s.status(t); before.State != "unknown" || !strings.Contains(before.Why, "is not running") {
		t.Errorf("before the first start: %+v", before)
	}
	s.node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
	s.start(t)
	quiet := s.waitShown(t, "a quiet node", func(f told) bool { return f.Node != "" && len(f.Documents) == 3 })
	if quiet.PID != s.nth.PID() || quiet.Node != s.node.Name || quiet.Version != 1 || !strings.Contains(quiet.Sentence, "nothing is announced") {
		t.Errorf("on a quiet day: %+v", quiet)
	}
	if quiet.Identity.Server == "" || quiet.Identity.Source != s.node.Kubeconfig || !strings.Contains(quiet.Identity.Credential, "certificate") {
		t.Errorf("the identity is %+v", quiet.Identity)
	}
	s.mustBeOff(t, quiet, string(event.RebalanceRecommendation), "action = \"ignore\"")
	s.mustBeOff(t, quiet, string(event.Shutdown), "bus")

	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.PodHeld)
	draining := s.waitShown(t, "a drain", func(f told) bool { return f.Step != nil && len(f.Step.HeldBy) > 0 && f.Step.PodsLeft == 1 })
	if step := draining.Step; step.Action != "drain" || step.Kind != event.SpotInterruption || !step.Hard || step.PodsTotal != 2 {
		t.Errorf("the step is %+v", step)
	}
	people := s.machine.Command(t, "status")
	for _, want := range []string{"draining node " + s.node.Name, "held by PDB db", "doing     drain for spot-interruption", "pods      1 of 2 left"} {
		if people.Status != 0 || !strings.Contains(people.Stdout, want) {
			t.Errorf("nth status ended with %d and does not say %q:\n%s%s", people.Status, want, people.Stdout, people.Stderr)
		}
	}

	s.nth.Kill()
	if crashed := s.status(t); crashed.State != "gone" || crashed.Step == nil {
		t.Errorf("after a crash: %+v", crashed)
	}
	s.start(t)
	s.waitShown(t, "the new process", func(f told) bool { return f.PID == s.nth.PID() && f.State == "running" && f.Step != nil })
	s.nth.Stop(t)
	if ended := s.status(t); ended.State != "stopped" || len(ended.Events) != 1 || ended.Events[0].Phase != state.Draining {
		t.Errorf("after a stop: %+v", ended)
	}
}

func (s *stage) mustBeOff(t *testing.T, found told, what, why string) {
	t.Helper()
	for _, off := range found.Off {
		if off.What == what && strings.Contains(off.Why, why) {
			return
		}
	}
	t.Errorf("%s is not told to be off (%s): %+v", what, why, found.Off)
}
