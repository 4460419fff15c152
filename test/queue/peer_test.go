package queue_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// The tests of this file are those that aws-node-termination-handler is accepted by when it reads a queue, under their
// numbers there; those about lifecycle hooks are in hooks_test.go. Its workload is a Deployment of one pod.

// taints are its taints, which nth-queue puts on a node if it is told to.
const taints = "[fleet]\ntaints = \"NoSchedule\"\n"

const prefix = "aws-node-termination-handler/"

// acceptance is what one message comes to: its nodes are cordoned, tainted, emptied but for a DaemonSet's pod, and left, and
// the queue is empty.
type acceptance struct {
	settings string
	message  func(instances ...string) string
	nodes    int
	// state is the one that EC2 says the instances are in; "" is running.
	state string
	// taint is the key of the taint of the peer's, without the prefix; "" if there must be none.
	taint string
}

// play lets the message come, and returns the consumer, for whatever else is to be said of it.
func (a acceptance) play(t *testing.T) {
	t.Helper()
	t.Parallel()
	s := newScene(t)
	var nodes []*lab.Node
	var ids []string
	for range max(a.nodes, 1) {
		node, id := s.add(t)
		node.AddDaemonSet(t, "agent")
		node.AddDeployment(t, "regular", 1)
		nodes, ids = append(nodes, node), append(ids, id)
		if a.state != "" {
			s.EC2.Enter(id, a.state)
		}
	}
	consumer := s.start(t, taints+a.settings)

	s.Send(t, a.message(ids...))

	for _, node := range nodes {
		node.WaitCordoned(t)
		if a.taint != "" {
			waitTainted(t, node, prefix+a.taint)
		}
		node.WaitEmpty(t)
	}
	consumer.WaitLog(t, systemd.Drained)
	s.WaitEmpty(t)
	s.early.mustHaveJudged(t, len(nodes))
	for _, node := range nodes {
		if len(node.Pods(t)) != 1 {
			t.Error("the pod of the DaemonSet is not there any more")
		}
		if got := node.Object(t).Spec.Taints; a.taint == "" && slices.ContainsFunc(got, ofAKind) {
			t.Errorf("the node has the taints %+v, want none of a kind", got)
		}
	}
	consumer.Stop(t)
}

func ofAKind(taint corev1.Taint) bool { return taint.Key != corev1.TaintNodeUnschedulable }

// of makes a message about one instance one about several.
func of(message func(string) string) func(...string) string {
	return func(instances ...string) string { return message(instances[0]) }
}

func TestPeer20ASpotInterruptionIsDrainedAndTheQueueIsEmpty(t *testing.T) {
	acceptance{message: of(region.Spot), taint: "spot-itn"}.play(t)
}

const drainForRebalance = "[events.rebalance-recommendation]\naction = \"drain\"\n"

func TestPeer21_ARebalanceRecommendationIsTaintedAndDrained(t *testing.T) {
	acceptance{settings: drainForRebalance, message: of(region.Rebalance), taint: "rebalance-recommendation"}.play(t)
}

func TestPeer22AMessageOfAnInstanceThatHasNoNodeIsDeletedOrLeft(t *testing.T) {
	t.Parallel()
	for setting, left := range map[string]int{"delete": 0, "leave": 2} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			other, _ := s.add(t)
			consumer := s.start(t, taints+"unknown = \""+setting+"\"\n"+drainForRebalance)
			known := s.NewInstance("192.168.0.4", nil)
			const unheardOf = "i-0ffffffffffffffff"

			s.Send(t, region.Rebalance(known), region.Spot(unheardOf))

			for _, id := range []string{known, unheardOf} {
				consumer.WaitSays(t, id+" has no Node in this cluster")
			}
			s.Await(t, "the messages are deleted or left", func() bool { return s.left(t) == left })
			consumer.Stop(t)
			if now := s.left(t); now != left {
				t.Errorf("%d messages are left, want %d", now, left)
			}
			if got := other.Object(t); got.Spec.Unschedulable || len(got.Spec.Taints) > 0 {
				t.Errorf("another node was touched: %+v", got.Spec)
			}
		})
	}
}

func TestPeer23AScheduledChangeIsTaintedDrainedAndTheQueueIsEmpty(t *testing.T) {
	acceptance{nodes: 2, message: region.Scheduled, taint: "scheduled-maintenance"}.play(t) // It can be about several instances.
}

func TestMaintenance_OfAKindToBeDrainedAtOnceWaitsForNoDate(t *testing.T) {
	acceptance{
		settings: "[events.scheduled-maintenance.codes]\nsystem-maintenance = \"now\"\n",
		message: func(instances ...string) string {
			return region.ScheduledAt(time.Date(2099, time.March, 1, 12, 0, 0, 0, time.UTC), "DEDICATED_HOST_NETWORK_MAINTENANCE", instances...)
		},
		taint: "scheduled-maintenance",
	}.play(t)
}

func TestPeer24AnInstanceThatStopsIsDrainedAndTheQueueIsEmpty(t *testing.T) {
	acceptance{state: "stopping", message: of(func(id string) string { return region.State(id, "stopping") })}.play(t)
}

func TestReservation_ThatIsTakenBackDrainsTheInstance(t *testing.T) {
	acceptance{message: of(region.ReservationEnd)}.play(t)
}

// The peer counts the instances and nodes with the tag by asking for all of them, over and over. nth-queue asks about
// those that messages are of, and counts what it knows.
func TestPeer27_OnlyTaggedInstancesAreDrainedAndCounted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const key = prefix + "managed"
	var ids []string
	var nodes []*lab.Node
	for _, tags := range []map[string]string{{key: ""}, {key: "yes"}, {"another": "tag"}} {
		node, id := s.AddInstance(t, s.cp, tags)
		node.AddDeployment(t, "regular", 1)
		nodes, ids = append(nodes, node), append(ids, id)
	}
	metrics, address := serving(t)
	consumer := s.start(t, taints+"managed_tag = \""+key+"\"\n"+metrics+"compatible = true\n")

	for _, id := range ids {
		s.EC2.Enter(id, "stopping")
		s.Send(t, region.State(id, "stopping"))
	}

	for _, node := range nodes[:2] {
		node.WaitCordoned(t)
		node.WaitEmpty(t)
	}
	s.WaitEmpty(t)
	if strange := nodes[2]; strange.Object(t).Spec.Unschedulable || len(strange.Pods(t)) != 1 {
		t.Error("a node whose instance has no tag was drained")
	}
	if asked := len(s.EC2.Asked()); asked == 0 || asked > 6 {
		t.Errorf("EC2 was asked %d times for three instances", asked)
	}
	for _, series := range []string{
		`actions_total{node_action="cordon-and-drain",node_status="success"} 2`, `actions_total{node_action="pre-drain",node_status="success"} 2`,
		`nth_actions_total{action="drain",outcome="done"} 2`, `nth_events_total{kind="state-change"} 2`, `nth_pods_evicted_total 2`,
		`nth_queue_messages_total{outcome="received"} 3`, `nth_queue_messages_total{outcome="deleted"} 3`,
		`nth_queue_messages_in_flight 0`, `nth_queue_nodes{state="draining"} 0`, `nth_queue_up 1`,
	} {
		s.Await(t, "there is "+series, func() bool { return slices.Contains(lines(page(t, address+"/metrics")), series) })
	}
	metricsNow := lines(page(t, address+"/metrics"))
	if !slices.ContainsFunc(metricsNow, func(line string) bool { // Those of other tests are there, too.
		known, is := strings.CutPrefix(line, `nth_queue_nodes{state="known"} `)
		count, err := strconv.Atoi(known)
		return is && err == nil && count >= len(nodes)
	}) {
		t.Errorf("the metrics do not tell of %d nodes:\n%s", len(nodes), strings.Join(metricsNow, "\n"))
	}
	consumer.Stop(t)
}
