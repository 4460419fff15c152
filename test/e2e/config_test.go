package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
)

// A machine is doomed before its kubelet has joined the cluster.
func TestNTHWatchesBeforeThereIsACredential(t *testing.T) {
	s := prepare(t, "")
	s.options.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	s.machine.Configure(t, s.options)
	s.start(t)
	s.nth.WaitReady(t)
	s.nth.WaitStatus(t, "waiting for the kubelet's credential")
	s.looks(t, spotDocument, 3)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitLog(t, systemd.EventSeen)
	s.looks(t, spotDocument, 3)
	s.nth.WaitStatus(t, "draining the node for spot-interruption")
	if status := s.nth.Status(); !strings.Contains(status, "waiting for the kubelet's credential") {
		t.Errorf("the status is %q; want it to say what is waited for", status)
	}
	s.mustBeUntouched(t)

	// The kubelet writes its kubeconfig.
	text, err := os.ReadFile(s.node.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.options.Kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.waitDrained(t)
	s.nth.Stop(t)
	if waiting := s.nth.Logged(systemd.IdentityWaiting); len(waiting) != 1 {
		t.Errorf("nth said %d times that it waits for the credential, want once", len(waiting))
	}
	if phase := s.machine.RecordOf(t, event.SpotInterruption).Phase; phase != state.Drained {
		t.Errorf("nth remembers the node as %s, want %s", phase, state.Drained)
	}
}

// A second node, whose settings leave nothing out, shows that there was time enough to notice the same announcements.
func TestAnInstanceThatIsLeftOutIsLeftAlone(t *testing.T) {
	s := prepare(t, "[imds]\nlife_cycles = [\"spot\"]\n")
	s.imds.Set("meta-data/instance-life-cycle", "on-demand")
	s.start(t)
	s.nth.WaitSays(t, "standing by: on-demand instances are excluded by imds.life_cycles, nothing is polled")
	s.nth.WaitLog(t, systemd.IdentityFound)
	before := s.imds.Requests().Total

	witness := *s
	witness.node = s.node.AddSpare(t)
	witness.imds = imdstest.NewServer()
	t.Cleanup(witness.imds.Close)
	witness.imds.Set("meta-data/instance-life-cycle", "on-demand")
	witness.options.Kubeconfig, witness.options.IMDS, witness.options.Settings = witness.node.Kubeconfig, witness.imds.URL, ""
	witness.machine = daemon.NewMachine(t, witness.options)
	witness.start(t)
	witness.nth.WaitSays(t, "polling for spot-interruption")
	for _, imds := range []*imdstest.Server{s.imds, witness.imds} {
		imds.SetSpot("terminate", twoMinutes())
		imds.SetLifecycleState("Terminated")
	}
	witness.waitDrained(t)
	witness.stopAfterLooks(t)

	s.nth.Stop(t)
	s.mustBeUntouched(t)
	if after := s.imds.Requests().Total; after != before {
		t.Errorf("nth asked %d times for what it is to leave alone: %v", after-before, s.imds.Requests().ByPath)
	}
}

func TestWrongSettingsAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ settings, want string }{
		"a value that is none of its choices": {
			"[events.spot-interruption]\naction = \"drian\"\n",
			`line 2: events.spot-interruption.action = "drian": must be one of "ignore", "notify", "cordon", "drain"`,
		},
		"a key that does not exist": {
			"[imds]\nintervall = \"1s\"\n",
			"line 2: imds.intervall: unknown key, did you mean imds.interval?",
		},
		"a duration without its unit": {
			"[drain]\nmargin = \"2\"\n",
			`line 2: drain.margin = "2": must be a duration from "0s" to "10m"`,
		},
		"no TOML": {
			"dry_run = certainly\n",
			"line 1: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := daemon.NewMachine(t, daemon.Options{Settings: test.settings})
			for _, command := range [][]string{{"run"}, {"config", "--check"}, {"config"}} {
				got := machine.Command(t, command...)
				if got.Status != 78 {
					t.Errorf("nth %s: exit status %d, want 78", strings.Join(command, " "), got.Status)
				}
				if want := machine.DropIn() + ": " + test.want; !strings.HasPrefix(got.Stderr, want) || strings.Count(got.Stderr, "\n") != 1 {
					t.Errorf("nth %s says\n%swant one line that begins with\n%s", strings.Join(command, " "), got.Stderr, want)
				}
			}
			if _, err := os.Stat(machine.StateDirectory()); err == nil {
				t.Errorf("nth has made its state directory before it has read its settings")
			}
		})
	}
}

func TestAWrongCommandLineIsRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"run", "--confg", "x"}, {"run", "now"}, {"drian"}, {"drain", "now"}, {"config", "--check=maybe"}, {}} {
		got := daemon.Command(t, args...)
		if got.Status != 64 {
			t.Errorf("nth %s: exit status %d, want 64", strings.Join(args, " "), got.Status)
		}
		if got.Stdout != "" || got.Stderr == "" {
			t.Errorf("nth %s: says %q, and %q as an error; want an error only", strings.Join(args, " "), got.Stdout, got.Stderr)
		}
	}
}
