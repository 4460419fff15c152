package node_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/node"
)

// How long EC2 takes to attach a volume, and to detach it.
const (
	attaching = 3 * time.Second
	detaching = 5 * time.Second
)

// database is the pod that has the volume, of a StatefulSet.
const database = "db-0"

// A step is one of those that a volume goes from a node to the next.
type step string

// The steps. What they are is what the API says.
const (
	leaves   step = "the pod is to go, or has ended"
	unused   step = "the node no longer uses the volume"
	lost     step = "the node is not ready"
	removed  step = "the Node is deleted"
	replaced step = "the pod is on the other node"
	detached step = "the volume is detached"
	attached step = "the volume is attached to the other node"
	runs     step = "the pod is ready there"
)

var steps = []step{leaves, unused, lost, removed, replaced, detached, attached, runs}

// A move is that of a volume from a machine that goes to one that stays.
type move struct {
	client      kubernetes.Interface
	goes, stays *node.Node
	volume      corev1.UniqueVolumeName
	nodeStays   atomic.Bool // nobody deletes the Node of the machine that is gone

	mu    sync.Mutex
	taken map[step]time.Time
}

// newMove puts a pod with a volume on a machine with the options, beside one that can take it.
func newMove(t *testing.T, o node.Options) *move {
	t.Helper()
	cp := lab.Shared(t)
	m := &move{client: cp.Admin, taken: map[step]time.Time{}}
	m.stays = node.Start(t, cp, node.Options{Volumes: true})
	o.Volumes, o.Beside = true, m.stays
	m.goes = node.Start(t, cp, o)
	home := m.stays.Node
	home.AttachVolumes(t, attaching, detaching)
	m.volume = home.AddVolume(t, "data")
	home.Cordon(t)
	home.AddStatefulSet(t, "db", 1, node.Ends("1s"), lab.Grace(20*time.Second), lab.Uses("data"))
	home.Uncordon(t)
	m.goes.Node.WaitFor(t, "said to use the volume", func(n *corev1.Node) bool { return slices.Contains(n.Status.VolumesInUse, m.volume) })
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { m.follow(ctx, t) })
	t.Cleanup(func() { cancel(); ended.Wait() })
	return m
}

// follow looks at the cluster until ctx ends, notes each step when it is seen first, and does what EC2's cloud controller
// does: it deletes the Node of a machine that is gone, when that is not ready.
func (m *move) follow(ctx context.Context, t *testing.T) {
	for tick := time.NewTicker(100 * time.Millisecond); ; {
		seen, err := m.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			t.Logf("looking at the volume: %v", err)
		}
		m.note(seen)
		if seen[lost] && !seen[removed] && m.goes.Off() && !m.nodeStays.Load() {
			err := m.client.CoreV1().Nodes().Delete(ctx, m.goes.Node.Name, metav1.DeleteOptions{})
			if err != nil && ctx.Err() == nil {
				t.Logf("deleting the Node of a machine that is gone: %v", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *move) note(seen map[step]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s, is := range seen {
		if is && m.taken[s].IsZero() {
			m.taken[s] = time.Now()
		}
	}
}

// look tells which steps are taken.
func (m *move) look(ctx context.Context) (map[step]bool, error) {
	nodes, err := m.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + m.goes.Node.Name})
	if err != nil {
		return nil, err
	}
	pods, err := m.client.CoreV1().Pods(m.goes.Node.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + database})
	if err != nil {
		return nil, err
	}
	attachments, err := m.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	seen := map[step]bool{removed: len(nodes.Items) == 0, leaves: len(pods.Items) == 0, detached: true}
	for _, n := range nodes.Items {
		seen[unused] = !slices.Contains(n.Status.VolumesInUse, m.volume)
		seen[lost] = !ready(n.Status.Conditions)
	}
	for _, p := range pods.Items {
		elsewhere := p.Spec.NodeName == m.stays.Node.Name
		seen[leaves] = p.Spec.NodeName != m.goes.Node.Name || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning
		seen[replaced] = elsewhere
		seen[runs] = elsewhere && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}
	for _, a := range attachments.Items {
		switch {
		case !strings.HasSuffix(string(m.volume), "^vol-"+*a.Spec.Source.PersistentVolumeName):
		case a.Spec.NodeName == m.goes.Node.Name:
			seen[detached] = false
		case a.Spec.NodeName == m.stays.Node.Name:
			seen[attached] = a.Status.Attached
		}
	}
	return seen, nil
}

func ready(conditions []corev1.NodeCondition) bool {
	return slices.ContainsFunc(conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// is tells whether a step is taken.
func (m *move) is(s step) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.taken[s].IsZero()
}

// await waits until a step is taken.
func (m *move) await(t *testing.T, s step) {
	t.Helper()
	m.goes.Await(t, string(s), func() bool { return m.is(s) })
}

// tell logs the steps, in seconds from a time on.
func (m *move) tell(t *testing.T, since time.Time, what string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	var text strings.Builder
	fmt.Fprintf(&text, "in seconds after %s:\n", what)
	for _, s := range steps {
		when := "never"
		if !m.taken[s].IsZero() {
			when = fmt.Sprintf("%.1f", m.taken[s].Sub(since).Seconds())
		}
		fmt.Fprintf(&text, "%7s  %s\n", when, s)
	}
	t.Log(text.String())
}

// drain announces the end of the machine, and takes it as soon as nth says that its node is drained.
func drain(t *testing.T, m *move) {
	t.Helper()
	m.goes.IMDS.SetSpot("terminate", time.Now().Add(2*time.Minute))
	m.goes.WaitLogged(t, systemd.Drained)
	m.goes.CutPower(t)
}

// nth waits until the kubelet has let go of the volume, and needs no more: the machine may go while EC2 still detaches that.
func TestVolume_IsAttachedElsewhereAfterADrain(t *testing.T) {
	t.Parallel()
	m := newMove(t, node.Options{Nth: true})
	notice := time.Now()
	drain(t, m)
	if seen, err := m.look(t.Context()); err != nil || !seen[unused] {
		t.Errorf("nth has drained the node, which still uses the volume: %v, %v", seen, err)
	}
	m.await(t, runs)
	m.tell(t, notice, "the notice")
}

// longest is for how long the way of a volume is measured.
const longest = 9 * time.Minute

// A way is one in which a machine is lost that has a volume.
type way struct {
	name      string
	options   node.Options
	nodeStays bool
	lose      func(*testing.T, *move) // returns when the machine is off
}

// vanish cuts the power of the machine without a word.
func vanish(t *testing.T, m *move) { t.Helper(); m.goes.CutPower(t) }

// powerOffAlone powers the machine off, and has the kubelet end its pods.
func powerOffAlone(t *testing.T, m *move) {
	t.Helper()
	m.goes.PowerOff(t)
}

// vanishAndTaint is vanish, and then has the taint set that nth-queue sets when EC2 says that the machine is off.
func vanishAndTaint(t *testing.T, m *move) {
	t.Helper()
	m.goes.CutPower(t)
	patch := fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"value":"nodeshutdown","effect":"NoExecute"}]}}`, corev1.TaintNodeOutOfService)
	_, err := m.client.CoreV1().Nodes().Patch(t.Context(), m.goes.Node.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// What is printed is for docs/shutdown.md.
func TestTheWayOfAVolumeIsMeasured(t *testing.T) {
	if os.Getenv(all) == "" {
		t.Skipf("it takes ten minutes: set %s", all)
	}
	eks := node.Options{ShutdownGrace: 150 * time.Second, CriticalGrace: 30 * time.Second}
	for _, w := range []way{
		{"nth", node.Options{Nth: true}, false, drain},
		{"the kubelet's graceful shutdown", eks, false, powerOffAlone},
		{"nobody", node.Options{}, false, vanish},
		{"nobody, and the Node stays", node.Options{}, true, vanish},
		{"nobody, and the Node stays and is tainted as out of service", node.Options{}, true, vanishAndTaint},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			m := newMove(t, w.options)
			m.nodeStays.Store(w.nodeStays)
			if w.options.ShutdownGrace > 0 {
				waitLock(t, m.goes, "kubelet")
			}
			began := time.Now()
			w.lose(t, m)
			off := time.Since(began)
			for !m.is(runs) && time.Since(began) < longest {
				time.Sleep(time.Second)
			}
			m.tell(t, began, fmt.Sprintf("that begins, with the machine off after %.1f s", off.Seconds()))
		})
	}
}
