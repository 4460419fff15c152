package e2e

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/faultproxy"
	"github.com/nth-project/nth/test/internal/lab"
)

// The tests in this file break what nth depends on, one thing at a time. A fault is held until nth has met it often enough, and never
// for a time. The metadata service's faults are judged in pkg/imds, and with kills of nth in test/crash.

// held sets a stage on which a drain without a deadline is held by the budget of one pod, with some pods gone by then. A host may be so
// busy that of the two minutes of a spot notice nothing is left when a fault is over. The settings are rebalanceDrains.
func held(t *testing.T, s *stage) {
	t.Helper()
	s.node.AddPods(t, "quick", 6)
	s.node.AddPods(t, "slow", 3, lab.Grace(2*time.Second), lab.GoesAtGrace())
	s.node.AddDeployment(t, "guarded", 1, lab.MinAvailable(1))
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitLog(t, systemd.PodHeld)
}

// finish sees a drain that was held to its end.
func (s *stage) finish(t *testing.T) {
	t.Helper()
	s.nth.MustRun(t)
	s.release(t, "guarded")
	s.waitDrained(t)
	s.nth.Stop(t)
	s.mustSayNothingOf(t, systemd.DrainIncomplete)
	s.mustRemember(t, state.Drained)
}

// proxied sets a stage on which the way to the API server can break.
func proxied(t *testing.T) (*stage, *faultproxy.Proxy) {
	t.Helper()
	s := prepareOn(t, lab.Shared(t), rebalanceDrains)
	proxy := faultproxy.New(t, s.node.Kubeconfig)
	s.configure(t, func(o *daemon.Options) { o.Kubeconfig = proxy.Kubeconfig })
	return s, proxy
}

func TestOutage_InMidDrainIsOutlived(t *testing.T) {
	t.Parallel()
	for kind, met := range map[faultproxy.Kind]int{
		faultproxy.Refuse:    0, // who is refused cannot be counted
		faultproxy.BlackHole: 3, // so that a new connection has met it, too
		faultproxy.Reset:     4,
		faultproxy.Cut:       4,
		faultproxy.Latency:   4,
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s, proxy := proxied(t)
			held(t, s)
			proxy.Fault(faultproxy.Fault{Kind: kind})
			if kind == faultproxy.Refuse {
				s.nth.WaitSays(t, "the API server cannot be reached")
			}
			proxy.AwaitMet(t, met)
			proxy.Lift()
			s.finish(t)
		})
	}
}

func TestCredential_ThatExpiresInMidDrainIsReadAgain(t *testing.T) {
	t.Parallel()
	s := prepareOn(t, lab.Shared(t), rebalanceDrains)
	s.node.LimitCertificate(t, 30*time.Second) // by when nth watches, on a busy host too
	held(t, s)
	s.nth.WaitSays(t, "401 Unauthorized")
	s.node.RotateCertificate(t)
	s.finish(t)
}

// The node itself remembers whose cordon it is, when the disk does not.
func TestRecord_ThatIsLostIsFoundOnTheNode(t *testing.T) {
	t.Parallel()
	for name, disk := range map[string]struct{ prepare, env string }{
		"read-only":                   {prepare: `mkdir -p "$state" && mount -t tmpfs -o ro none "$state"`},
		"full after the first record": {prepare: `mkdir -p "$state" && mount -t tmpfs -o size=4k none "$state"`},
		"no directory":                {env: "STATE_DIRECTORY=/dev/null/nth"},
		"forgotten":                   {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := prepareOn(t, lab.Shared(t), withdrawnSoon)
			s.configure(t, func(o *daemon.Options) { o.Prepare, o.Env = disk.prepare, []string{disk.env} })
			s.node.AddPods(t, "work", 5)
			s.watch(t)
			s.imds.SetSpot("terminate", twoMinutes())
			s.node.WaitCordoned(t)
			s.node.WaitEmpty(t)
			s.nth.WaitLog(t, systemd.Drained)
			if name != "forgotten" {
				if e := s.nth.WaitLog(t, systemd.StateTrouble); e.Level != "error" {
					t.Errorf("nth said %q at the level %s, want error", e.Message, e.Level)
				}
			}
			s.nth.Kill()
			s.machine.Forget(t)
			s.imds.ClearSpot()
			s.start(t)
			s.nth.WaitSays(t, "own record of that is lost")
			s.node.WaitUncordoned(t)
			s.nth.Stop(t)
			s.mustBearNoClaim(t)
		})
	}
}

// A process may open no file any more: it, or another part of the machine, has used up what there is.
func TestDescriptors_NoneLeftIsShownAndSurvived(t *testing.T) {
	t.Parallel()
	s := prepareOn(t, lab.Shared(t), "")
	s.watch(t)
	limit := func(files uint64) {
		t.Helper()
		if err := unix.Prlimit(s.nth.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: 1024}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(3)
	s.imds.SetSpot("terminate", twoMinutes())
	s.nth.WaitSays(t, "cannot check for spot-interruption events: reading metadata \"spot/instance-action\": dial: socket: too many open files")
	s.nth.WaitSays(t, "cannot write the status file")
	if shown := s.machine.Command(t, "status"); shown.Status == 0 {
		t.Errorf("nth cannot look, and its status is\n%s", shown.Stdout)
	}
	limit(1024)
	s.waitDrained(t)
	s.nth.Stop(t)
}
