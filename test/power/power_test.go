// Package power judges what becomes of a node when somebody presses its power button, which is all that EC2 does: on a
// machine that has a kernel of its own, and nth in its image.
package power

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/virtual"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 2)) }

// suite is the Debian release of the machines.
const suite = "trixie"

// A node is a virtual machine and what is around it.
type node struct {
	*virtual.Machine
	cluster *lab.Node
}

// newNode boots a machine that has nth in its image, makes it a node, and returns when nth watches.
func newNode(t *testing.T, image virtual.Image) *node {
	t.Helper()
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	n := &node{cluster: lab.Shared(t).AddNode(t)}
	n.Machine = virtual.Boot(t, image)
	t.Logf("the machine is up, by %s, after %.1f s", n.Accelerator, n.Took.Seconds())

	// nth was started with the machine, and waits for what the kubelet writes.
	n.join(t)
	n.Write(t, "/etc/nth/nth.toml.d/50-test.toml", "[imds]\nendpoint = \""+n.seenFromInside(imds.URL)+"\"\n")
	n.Run(t, "systemctl", "restart", "nth")
	n.waitStatus(t, "watching; nothing is announced for node "+n.cluster.Name)
	n.Await(t, "nth answers the power button", func() bool {
		return strings.Contains(n.Try(t, "systemd-inhibit", "--list", "--no-legend").Stdout, "handle-power-key")
	})
	return n
}

// seenFromInside is a URL of the host as the machine has to write it.
func (*node) seenFromInside(url string) string {
	return strings.Replace(url, "127.0.0.1", virtual.Gateway, 1)
}

// join gives the machine the credential of the node's kubelet.
func (n *node) join(t *testing.T) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(n.cluster.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		t.Fatal(err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.TLSServerName = n.seenFromInside(cluster.Server), "localhost"
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	n.Write(t, "/var/lib/kubelet/kubeconfig", string(text))
}

// waitStatus waits until the sentence that "systemctl status" shows contains the text.
func (n *node) waitStatus(t *testing.T, text string) {
	t.Helper()
	n.Await(t, "the status says \""+text+"\"", func() bool {
		return strings.Contains(n.Property(t, "nth", "StatusText"), text)
	})
}

func TestPowerButton_OfARealKernelDrainsTheNode(t *testing.T) {
	const pods, grace = 110, 5 * time.Second
	n := newNode(t, virtual.Bake(t, suite, host.Package(t, host.Older, "deb")))
	n.cluster.AddPods(t, "web", pods, lab.Grace(grace), lab.GoesAtGrace())
	gone, last := 0, map[lab.Happening]time.Time{} // when each has happened last
	stop := n.cluster.Observe(t, func(m lab.Moment) {
		last[m.What] = m.At
		if m.What == lab.PodGone {
			gone++
		}
	})
	pressed := n.PressPower(t)
	off := n.WaitOff(t)
	stop()
	for what, at := range last {
		t.Logf("%.1f s after the button, the last: %s", at.Sub(pressed).Seconds(), what)
	}
	t.Logf("%.1f s after the button: off", off.Sub(pressed).Seconds())
	if gone != pods || last[lab.PodGone].After(off) || last[lab.Cordoned].IsZero() {
		t.Errorf("%d of %d pods went, the last at %s; the machine was off at %s", gone, pods, last[lab.PodGone], off)
	}
	n.mustHaveHeard(t)
}

// mustHaveHeard fails the test unless nth has answered the button itself, and had drained the node before it was stopped.
func (n *node) mustHaveHeard(t *testing.T) {
	t.Helper()
	if said := n.Journal(t, "_SYSTEMD_UNIT=nth.service", "MESSAGE_ID="+systemd.PowerButton); len(said) != 1 {
		t.Errorf("nth says %d times that the button was pressed, want once:", len(said))
		for _, e := range said {
			t.Log(e.Message())
		}
	}
	var story []string
	for _, e := range n.Journal(t, "_SYSTEMD_UNIT=nth.service",
		"MESSAGE_ID="+systemd.EventSeen, "MESSAGE_ID="+systemd.Drained, "MESSAGE_ID="+systemd.Stopping) {
		story = append(story, e[systemd.FieldMessageID])
	}
	// The first was when it was started again with the settings of the test.
	want := []string{systemd.Stopping, systemd.EventSeen, systemd.Drained, systemd.Stopping}
	if !slices.Equal(story, want) {
		t.Errorf("the journal has the messages %q, want %q", story, want)
	}
}
