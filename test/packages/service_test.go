package packages

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
)

// What a person reads at every moment of a machine's life, from the first boot to the end of a drain.
func TestTheStatusReadsLikeASentence(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := bareHost(t, suite)
		h.Install(t, host.Older)
		h.Run(t, "systemctl", "start", "nth")
		h.WaitStatus(t, "watching; waiting for the kubelet's credential: ")
		mustShow(t, h, "Active: active (running)", "enabled", `Status: "watching; waiting for the kubelet's credential: `,
			"Drain this Kubernetes node before EC2 takes the machine away")

		h.Join(t)
		h.WaitWatching(t)
		mustShow(t, h, `Status: "watching; nothing is announced for node `+h.Node.Name+`"`)

		h.IMDS.Fault(imdstest.Fault{Kind: imdstest.Reset})
		h.WaitStatus(t, "watching; nothing is announced for node "+h.Node.Name+"; metadata service unreachable since ")
		h.IMDS.Lift()
		h.Await(t, "the metadata service is well again", func() bool {
			return !strings.Contains(h.Status(t), "unreachable")
		})

		h.Node.AddDeployment(t, "web", 1)
		h.Node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.WaitStatus(t, "held by PDB db")
		said := h.Run(t, "systemctl", "status", "nth")
		draining := regexp.MustCompile(`Status: "draining node ` + regexp.QuoteMeta(h.Node.Name) +
			` for spot-interruption: \d of 2 pods gone, \d+ s left, held by PDB db"`)
		if !draining.MatchString(said) {
			t.Errorf("during the drain it shows\n%s\nwant %s", said, draining)
		}

		h.Node.AddSpare(t) // takes what is evicted from now on
		h.Node.Scale(t, "db", 2)
		h.WaitStatus(t, "node "+h.Node.Name+" is drained for spot-interruption")
		mustShow(t, h, `Status: "node `+h.Node.Name+` is drained for spot-interruption"`)
		h.Node.WaitEmpty(t)

		h.Run(t, "systemctl", "stop", "nth")
		mustShow(t, h, "Active: inactive (dead)")
	})
}

// Whoever types "nth check" sees the whole machine, and the service does not: what counts is what the service can do.
func TestCheckFindsThatTheServiceDoesNotSeeAKubeconfigBelowTmp(t *testing.T) {
	t.Parallel()
	h := newHost(t, "trixie")
	mustFind := func(status int, line string) {
		t.Helper()
		o := h.Try(t, "nth", "check")
		if o.Status != status || !regexp.MustCompile(`(?m)^`+line).MatchString(o.Stdout) {
			t.Errorf("nth check ended with %d, want %d and a line %s\n%s%s", o.Status, status, line, o.Stdout, o.Stderr)
		}
	}
	mustFind(0, `ok    daemon      process \d+ watches for node `+regexp.QuoteMeta(h.Node.Name)+"$")

	h.Run(t, "mv", "/var/lib/kubelet/kubeconfig", "/tmp/kubeconfig")
	h.Configure(t, "[kubernetes]\nkubeconfig = \"/tmp/kubeconfig\"\n")
	h.Run(t, "systemctl", "restart", "nth")
	h.WaitStatus(t, "watching; waiting for the kubelet's credential: ")
	mustFind(1, `fail  daemon      it has no credential: .*/tmp/kubeconfig.* This check has found one in /tmp/kubeconfig: `)

	h.Run(t, "systemctl", "stop", "nth")
	mustFind(1, `fail  daemon      nth is not running`)
}

// mustShow fails the test unless "systemctl status" shows the texts.
func mustShow(t *testing.T, h *host.Host, texts ...string) {
	t.Helper()
	said := h.Try(t, "systemctl", "status", "--full", "nth").Stdout // its status is 3 for a unit that is not active
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("systemctl status shows\n%s\nwant it to contain %s", said, text)
		}
	}
}

func TestTheJournalTellsTheStoryOfAnEvent(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		h.Node.AddDeployment(t, "web", 2)
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.Node.WaitEmpty(t)
		seen := h.WaitLogged(t, systemd.EventSeen)
		h.WaitLogged(t, systemd.Drained)

		id := seen[systemd.FieldEventID]
		want := []string{
			systemd.EventSeen, systemd.DrainStarted, systemd.Cordoned, systemd.PodEvicted, systemd.PodGone, systemd.Drained,
		}
		for _, e := range h.Journal(t, systemd.FieldEventID+"="+id) {
			if len(want) > 0 && e[systemd.FieldMessageID] == want[0] {
				want = want[1:]
			}
			if e["_SYSTEMD_UNIT"] != "nth.service" || e["SYSLOG_IDENTIFIER"] != "nth" ||
				e[systemd.FieldEventKind] != "spot-interruption" || e[systemd.FieldNode] != h.Node.Name {
				t.Errorf("%q has the fields %v", e.Message(), e)
			}
		}
		if len(want) > 0 {
			t.Errorf("journalctl NTH_EVENT_ID=%s does not tell, in this order, the rest of the story: %q", id, want)
		}
		mustHavePriorities(t, h)
		mustExplainItself(t, h)
	})
}

// mustHavePriorities fails the test unless what is worth a look is a warning and everything else is not.
func mustHavePriorities(t *testing.T, h *host.Host) {
	t.Helper()
	const warning, info = "4", "6"
	for id, priority := range map[string]string{
		systemd.Started: info, systemd.IdentityFound: info, systemd.PodEvicted: info, systemd.PodGone: info,
		systemd.EventSeen: warning, systemd.Cordoned: warning, systemd.Drained: warning,
	} {
		for _, e := range h.Logged(t, id) {
			if e["PRIORITY"] != priority {
				t.Errorf("%q has the priority %s, want %s", e.Message(), e["PRIORITY"], priority)
			}
		}
	}
}

// mustExplainItself fails the test unless journalctl adds what the catalog says to every message of this machine.
func mustExplainItself(t *testing.T, h *host.Host) {
	t.Helper()
	explained := h.Run(t, "journalctl", "--catalog", "--boot", "_SYSTEMD_UNIT=nth.service")
	for _, want := range []string{
		"Subject: Node " + h.Node.Name + " is drained\n", "Subject: An event was announced: spot-interruption\n",
		"Defined-By: nth\n", "Support: https://github.com/nth-project/nth\n", "journalctl NTH_EVENT_ID=",
	} {
		if !strings.Contains(explained, want) {
			t.Errorf("journalctl --catalog does not say %q:\n%s", want, explained)
		}
	}
	if strings.Contains(explained, "@NTH_") {
		t.Errorf("an explanation has a gap:\n%s", explained)
	}
	for _, e := range h.Logged(t, "") {
		if e[systemd.FieldMessageID] == "" {
			t.Errorf("%q has no message ID, and so no explanation", e.Message())
		}
	}
}

// The watchdog of the unit is shortened: what is judged is that the service is watched, not for how long.
func TestAServiceThatHangsIsKilledAndStartedAgain(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		h.Write(t, "/etc/systemd/system/nth.service.d/50-test.conf", "[Service]\nWatchdogSec=3s\nTimeoutAbortSec=1s\n")
		h.Run(t, "systemctl", "daemon-reload")
		h.Run(t, "systemctl", "restart", "nth")
		before := h.Hang(t, "nth")
		h.Await(t, "systemd has started nth again", func() bool { return h.Property(t, "nth", "NRestarts") == "1" })
		h.WaitWatching(t)

		if after := h.MainPID(t); after == before || after == "0" {
			t.Errorf("the process is %s, and was %s before", after, before)
		}
		said := h.Run(t, "journalctl", "--boot", "--unit=nth", "--output=cat")
		if !strings.Contains(said, "Watchdog timeout") || !strings.Contains(said, "Failed with result 'watchdog'") {
			t.Errorf("the journal does not tell of the watchdog:\n%s", said)
		}
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.Node.WaitCordoned(t)
	})
}

func TestAReloadReadsTheSettingsAgain(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		before := h.MainPID(t)
		h.Configure(t, "[events.spot-interruption]\naction = \"cordon\"\n")
		h.Run(t, "systemctl", "reload", "nth")
		h.WaitLogged(t, systemd.Reloaded)

		h.Configure(t, "[events.spot-interruption]\naction = \"dance\"\n")
		h.Run(t, "systemctl", "reload", "nth")
		h.WaitLogged(t, systemd.ConfigInvalid)
		h.Await(t, "the reload has ended", func() bool { return h.Property(t, "nth", "ActiveState") == "active" })

		h.Node.AddPod(t, "stays")
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.WaitStatus(t, "node "+h.Node.Name+" is cordoned")
		if pods := h.Node.Pods(t); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
			t.Errorf("the node has %d pods, want the one that it had", len(pods))
		}
		if after := h.MainPID(t); after != before {
			t.Errorf("the process is %s, and was %s before the reloads", after, before)
		}
	})
}
