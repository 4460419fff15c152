package packages

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
)

// edit is what an administrator has put into the file of settings.
const edit = "# edited\n"

func TestAnUpgradeInTheMiddleOfADrainGoesOnWithIt(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		h.Run(t, "sh", "-c", "printf '"+edit+"' >>/etc/nth/nth.toml")
		h.Node.AddDeployment(t, "web", 2)
		h.Node.AddPods(t, "stubborn", 2, lab.Grace(90*time.Second), lab.NeverGoes())
		h.Node.AddDeployment(t, "db", 1, lab.MinAvailable(1))
		evicted := countEvictions(t, h)
		h.IMDS.SetSpot("terminate", twoMinutes())
		h.WaitStatus(t, "held by PDB db")
		h.Await(t, "four pods have been evicted", func() bool { return len(h.Logged(t, systemd.PodEvicted)) == 4 })

		before := h.MainPID(t)
		h.Install(t, host.Newer)
		h.WaitStatus(t, "held by PDB db")
		if after := h.MainPID(t); after == before || after == "0" {
			t.Errorf("the process is %s, and was %s before the upgrade", after, before)
		}
		if said := h.Run(t, "nth", "version"); !strings.HasPrefix(said, "nth version "+string(host.Newer)+" ") {
			t.Errorf("the program says %q", said)
		}
		h.Node.AddSpare(t)
		h.Node.Scale(t, "db", 2)
		h.Await(t, "the pod of db is evicted", func() bool { return len(h.Logged(t, systemd.PodEvicted)) == 5 })
		h.Run(t, "systemctl", "stop", "nth")

		mustEvictOnce(t, h, evicted())
		if said := h.Run(t, "cat", "/etc/nth/nth.toml"); !strings.HasSuffix(said+"\n", edit) {
			t.Errorf("the edited file of settings has become\n%s", said)
		}
		if !h.Node.Object(t).Spec.Unschedulable {
			t.Error("the node is schedulable after the upgrade")
		}
	})
}

// countEvictions counts how often each pod of the node begins to go, from now until the returned function is called.
func countEvictions(t *testing.T, h *host.Host) (counts func() map[string]int) {
	t.Helper()
	began := map[string]int{}
	stop := h.Node.Observe(t, func(m lab.Moment) {
		if m.What == lab.PodTerminating {
			began[m.Pod]++
		}
	})
	return func() map[string]int { stop(); return began }
}

// mustEvictOnce fails the test unless nth has evicted five pods, each once, whichever version did it.
func mustEvictOnce(t *testing.T, h *host.Host, began map[string]int) {
	t.Helper()
	said := map[string]int{}
	for _, e := range h.Logged(t, systemd.PodEvicted) {
		said[strings.TrimPrefix(e[systemd.FieldPod], h.Node.Namespace+"/")]++
	}
	for pod, times := range said {
		if times != 1 {
			t.Errorf("nth has evicted %s %d times", pod, times)
		}
	}
	if want, got := slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(began)); !slices.Equal(want, got) || len(got) != 5 {
		t.Errorf("the pods %q have been made to go, and nth says that it evicted %q; want the same 5", got, want)
	}
	for pod, times := range began {
		if times != 1 {
			t.Errorf("%s was made to go %d times", pod, times)
		}
	}
}

func TestAnUpgradeKeepsWhatTheAdministratorDecided(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		h := newHost(t, suite)
		older, newer := "/root/older.deb", "/root/newer.deb"
		h.Put(t, host.Package(t, host.Older, "deb"), older)
		h.Put(t, host.Package(t, host.Newer, "deb"), newer)

		h.Run(t, "systemctl", "disable", "--now", "nth")
		h.Run(t, "dpkg", "--install", newer)
		mustBe(t, h, "disabled", "inactive")

		h.Run(t, "systemctl", "enable", "nth")
		h.Run(t, "dpkg", "--install", older)
		mustBe(t, h, "enabled", "inactive") // it was stopped, and stays so until the next boot

		h.Run(t, "systemctl", "mask", "nth")
		h.Run(t, "dpkg", "--install", newer)
		mustBe(t, h, "masked", "inactive")
		h.Run(t, "systemctl", "unmask", "nth")

		// A service that cannot start is no reason to leave the package half installed.
		h.Run(t, "systemctl", "start", "nth")
		h.Write(t, "/etc/nth/nth.toml.d/60-wrong.toml", "[drain]\nmargin = \"soon\"\n")
		h.Run(t, "dpkg", "--install", older)
		h.Await(t, "nth gives up on its settings", func() bool { return h.Property(t, "nth", "ActiveState") == "failed" })
		h.WaitLogged(t, systemd.ConfigInvalid)
		h.Run(t, "rm", "/etc/nth/nth.toml.d/60-wrong.toml")
		h.Run(t, "systemctl", "start", "nth")
		mustBe(t, h, "enabled", "active")
	})
}
