// Package demo shows nth draining a node that EC2 takes back: "make demo" runs it. The control plane is a real one, nth is the
// program that is shipped, run as a process with a kubelet's credential, and the metadata service speaks EC2's protocol.
package demo

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

const (
	// notice is what EC2 gives before it takes a spot instance.
	notice = 2 * time.Minute
	// joinAfter is when the machine joins that takes over. Until then budgets have reason to hold pods back.
	joinAfter = 3 * time.Second
)

func TestDemo_EndsWithADrainedNode(t *testing.T) {
	klog.SetLogger(logr.Discard()) // client-go's words about its watches belong nowhere in the timeline
	var shown strings.Builder
	play(t, io.MultiWriter(os.Stdout, &shown))
	for _, want := range []string{"EC2      announces", "cluster  cordoned", "nth      disruption budget", " 7 pods gone, nothing left"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("it does not show %q", want)
		}
	}
}

// play furnishes the lab, announces the interruption and prints what comes of it.
func play(t *testing.T, out io.Writer) {
	fmt.Fprintln(out, "EC2 takes a spot instance back, and nth drains its node, on a real control plane.")
	node := lab.ForTest(t).AddNode(t)
	node.AddDaemonSet(t, "log-agent")
	node.AddDeployment(t, "web", 3, lab.MinAvailable(2))
	node.AddStatefulSet(t, "store", 2, lab.MinAvailable(1), lab.Grace(4*time.Second), lab.GoesAtGrace())
	node.AddPods(t, "worker", 2, lab.Grace(8*time.Second), lab.GoesAtGrace())
	fmt.Fprintf(out, "Node %s has a Deployment and a StatefulSet with disruption budgets, two workers that\n"+
		"take 8 s to end, and a pod of a DaemonSet. Another node joins %.0f s after the notice.\n\n", node.Name, joinAfter.Seconds())
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	nth := daemon.NewMachine(t, daemon.Options{Kubeconfig: node.Kubeconfig, IMDS: imds.URL}).Start(t)
	nth.WaitWatching(t, node.Name)

	began := time.Now()
	deadline := began.Add(notice).Truncate(time.Second) // EC2's times have no fractions
	show := &timeline{out: out, began: began}
	stop := node.Observe(t, show.happened)
	nth.Follow(show.said)
	show.row(began, "EC2", "announces the end of the machine at "+deadline.UTC().Format("15:04:05 UTC"))
	imds.SetSpot("terminate", deadline)
	time.Sleep(joinAfter)
	show.row(time.Now(), "cluster", node.AddSpare(t).Name+" joins")
	nth.WaitLog(t, systemd.Drained)
	left := time.Until(deadline)
	node.WaitEmpty(t)
	nth.Stop(t)
	stop()
	if !node.Object(t).Spec.Unschedulable || left < 0 {
		t.Fatalf("the node is not cordoned, or was drained %s too late", -left)
	}
	show.conclude(left)
}

// A timeline prints what the witnesses tell, as it comes.
type timeline struct {
	out   io.Writer
	began time.Time

	mu       sync.Mutex
	cordoned time.Duration // after the notice
	gone     int           // pods
}

func (l *timeline) row(at time.Time, who, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "%6.2f s  %-8s %s\n", max(0, at.Sub(l.began).Seconds()), who, text)
}

// happened takes what the API server shows.
func (l *timeline) happened(m lab.Moment) {
	l.row(m.At, "cluster", fmt.Sprintf("%s %s", m.What, m.Pod))
	l.mu.Lock()
	defer l.mu.Unlock()
	switch m.What {
	case lab.Cordoned:
		l.cordoned = m.At.Sub(l.began)
	case lab.PodGone:
		l.gone++
	}
}

// quiet are messages that the cluster shows anyway, or that come before the notice.
var quiet = []string{"", systemd.Started, systemd.IdentityFound, systemd.Cordoned, systemd.PodGone, systemd.Stopping}

// said takes a line of nth's journal.
func (l *timeline) said(e daemon.Entry) {
	if !slices.Contains(quiet, e.Fields[systemd.FieldMessageID]) {
		l.row(e.Time, "nth", e.Message)
	}
}

func (l *timeline) conclude(left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, "\nDrained in time: cordoned %d ms after the notice, %d pods gone, nothing left that could be moved, %.0f s to spare.\n",
		l.cordoned.Milliseconds(), l.gone, left.Seconds())
}
