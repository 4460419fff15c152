// Package power judges what becomes of a node when somebody presses its power button, which is all that EC2 does: on a
// machine that has a kernel of its own, and nth in its image.
package power

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/virtual"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 2)) }

// seenFromInside is an address of the host as the machine has to write it.
func seenFromInside(url string) string { return strings.Replace(url, "127.0.0.1", virtual.Gateway, 1) }

func TestPowerButton_OfARealKernelDrainsTheNode(t *testing.T) {
	const pods, grace = 110, 5 * time.Second
	cluster, imds := lab.Shared(t).AddNode(t), imdstest.NewServer()
	t.Cleanup(imds.Close)
	cluster.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
	m := virtual.Boot(t, "trixie", virtual.Image{Package: host.Package(t, host.Older, "deb"), Files: map[string]string{
		"/var/lib/kubelet/kubeconfig": cluster.Portable(t, func(config *clientcmdapi.Config) {
			for _, cluster := range config.Clusters {
				cluster.Server, cluster.TLSServerName = seenFromInside(cluster.Server), "localhost"
			}
		}),
		"/etc/nth/nth.toml.d/50-test.toml": "[imds]\nendpoint = \"" + seenFromInside(imds.URL) + "\"\n",
	}})
	m.WaitSays(t, "found the kubelet's credential: this is node "+cluster.Name)
	m.WaitSays(t, "by pressing its virtual power button, nth drains the node")
	gone, last := 0, map[lab.Happening]time.Time{} // when each has happened last
	stop := cluster.Observe(t, func(m lab.Moment) {
		last[m.What] = m.At
		if m.What == lab.PodGone {
			gone++
		}
	})
	pressed := m.PressPower(t)
	off := m.WaitOff(t)
	stop()
	for what, at := range last {
		t.Logf("%.1f s after the button, the last: %s", at.Sub(pressed).Seconds(), what)
	}
	t.Logf("%.1f s after the button: off", off.Sub(pressed).Seconds())
	if gone != pods || last[lab.PodGone].After(off) || last[lab.Cordoned].IsZero() {
		t.Errorf("%d of %d pods went, the last at %s; the machine was off at %s", gone, pods, last[lab.PodGone], off)
	}
	// nth has answered the button itself, and had drained the node before it was stopped.
	var story []string
	for _, e := range m.Journal(t, "_SYSTEMD_UNIT=nth.service", "MESSAGE_ID="+systemd.PowerButton,
		"MESSAGE_ID="+systemd.EventSeen, "MESSAGE_ID="+systemd.Drained, "MESSAGE_ID="+systemd.Stopping) {
		story = append(story, e[systemd.FieldMessageID])
	}
	if want := []string{systemd.PowerButton, systemd.EventSeen, systemd.Drained, systemd.Stopping}; !slices.Equal(story, want) {
		t.Errorf("the journal has the messages %q, want %q", story, want)
	}
}
