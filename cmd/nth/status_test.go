package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// hung is the Program of a status that was last written at noon.
const hung = "hung"

// writeStatus writes a status as the daemon does.
func writeStatus(t *testing.T, dir string, s state.Status) {
	t.Helper()
	if err := record.WriteStatus(dir, s); err != nil {
		t.Error(err)
	}
	if s.Program != hung {
		return
	}
	if err := os.Chtimes(filepath.Join(dir, "status.json"), noon, noon); err != nil {
		t.Error(err)
	}
}

// draining is the status of a daemon in the middle of a drain.
func draining(pid int) state.Status {
	at := noon
	return state.Status{
		Version: state.StatusVersion, Program: "v1.0.0", PID: pid, Started: at.Add(-time.Hour), Updated: time.Now(),
		Node: "ip-10-0-0-1", Sentence: "draining node ip-10-0-0-1 for spot-interruption: 1 of 3 pods gone, held by PDB web",
		Identity: state.IdentityStatus{Credential: "the exec plugin aws", Source: "/var/lib/kubelet/kubeconfig", Server: "https://10.0.0.9"},
		Step: &state.StepStatus{
			Action: "drain", Event: "a", Kind: event.SpotInterruption, Began: at, Hard: true,
			PodsTotal: 3, PodsLeft: 2, HeldBy: map[string]string{"default/web-1": "PDB web", "default/web-2": "PDB web"},
		},
		Events: []state.EventStatus{
			{ID: "a", Kind: event.SpotInterruption, Phase: state.Draining, Plan: "EC2 will terminate this spot instance; plan: drain now"},
			{ID: "b", Kind: event.ScheduledMaintenance, Phase: state.Incomplete, Plan: "EC2 has scheduled a stop; plan: drain now",
				Missing: at, Error: "the deadline came first"},
		},
		Documents: []state.DocumentStatus{
			{Kind: event.SpotInterruption, LastGood: at},
			{Kind: event.ASGTermination, Trouble: "connection refused", Since: at},
		},
		Off: []state.OffStatus{{What: "shutdown", Why: "there is no bus"}},
	}
}

// statusOf runs "nth status" over a status, or over an empty directory.
func statusOf(t *testing.T, s *state.Status, flags string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	if s != nil {
		writeStatus(t, dir, *s)
	}
	t.Setenv("RUNTIME_DIRECTORY", dir)
	status, stdout, stderr = call(t, "status "+flags)
	return status, strings.ReplaceAll(stdout, dir, "/run/nth"), stderr
}

func TestStatus_OfADrain(t *testing.T) {
	s := draining(os.Getpid())
	status, stdout, stderr := statusOf(t, &s, "")
	if status != 0 || stderr != "" {
		t.Errorf("status %d, on standard error: %s", status, stderr)
	}
	pid := strings.NewReplacer("process "+strconv.Itoa(os.Getpid()), "process 42")
	golden(t, "status-draining", pid.Replace(stdout))
}

func TestStatus_Each(t *testing.T) {
	running, silent, stopped, gone := draining(os.Getpid()), draining(os.Getpid()), draining(os.Getpid()), draining(1<<30)
	running.Updated = noon // The daemon's clock cannot be set, and the machine's was.
	silent.Program, stopped.Stopped = hung, noon
	for _, test := range []struct {
		status *state.Status
		state  string
		why    string
	}{
		{nil, "unknown", "nth is not running, or has just started: no status in /run/nth"},
		{&running, "running", ""},
		{&silent, "silent", "nth may be hung: process " + strconv.Itoa(os.Getpid()) + " has not updated its status since 2026-01-31 12:00:00 UTC"},
		{&stopped, "stopped", "nth is not running: stopped at 2026-01-31 12:00:00 UTC"},
		{&gone, "gone", "nth is not running: process 1073741824 died without being asked to stop"},
	} {
		t.Run(test.state, func(t *testing.T) {
			wantStatus, wantText, wantSentence := 1, test.why+"\n", ""
			if test.status != nil {
				wantSentence = test.status.Sentence
				wantText += "last known: " + wantSentence
			}
			if test.state == "running" {
				wantStatus, wantText = 0, wantSentence
			}
			if status, stdout, _ := statusOf(t, test.status, ""); status != wantStatus || !strings.HasPrefix(stdout, wantText) {
				t.Errorf("status %d, got\n%s\nwant\n%s", status, stdout, wantText)
			}
			var found struct{ State, Why, Sentence string }
			status, stdout, _ := statusOf(t, test.status, "--json")
			if err := json.Unmarshal([]byte(stdout), &found); err != nil || status != wantStatus || found.State != test.state || found.Why != test.why || found.Sentence != wantSentence {
				t.Errorf("as JSON: status %d, %v\n%s", status, err, stdout)
			}
		})
	}
}

func TestHeartbeat_WhileNthCouldHearAndAct(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*state.Status)
		then   time.Duration
		alive  bool
	}{
		"all is well":                           {func(*state.Status) {}, 20 * time.Second, true},
		"nothing is looked for":                 {func(s *state.Status) { s.Documents = nil }, 0, true},
		"its loop hangs":                        {func(*state.Status) {}, 31 * time.Second, false},
		"there is no identity yet":              {func(s *state.Status) { s.Node = "" }, 0, false},
		"its credential is refused":             {func(s *state.Status) { s.Identity.Trouble = "refused" }, 0, false},
		"a look fails":                          {func(s *state.Status) { s.Documents[1].Trouble = "connection refused" }, 0, false},
		"a document has never been looked at":   {func(s *state.Status) { s.Documents[0].LastGood = time.Time{} }, 0, false},
		"it has stopped":                        {func(s *state.Status) { s.Stopped = time.Now() }, 0, false},
		"something is announced, and it drains": {func(s *state.Status) { s.Step = &state.StepStatus{Action: "drain"} }, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				show, alive := nth.Watching()
				if alive() {
					t.Errorf("it is alive before it has begun")
				}
				status := state.Status{Node: "node-1", Documents: []state.DocumentStatus{
					{Kind: event.SpotInterruption, LastGood: time.Now()}, {Kind: event.ASGTermination, LastGood: time.Now()},
				}}
				c.change(&status)
				show(status)
				time.Sleep(c.then)
				if alive() != c.alive {
					t.Errorf("it is alive: %t, want %t", alive(), c.alive)
				}
			})
		})
	}
}
