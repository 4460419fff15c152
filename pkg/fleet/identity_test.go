package fleet_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

// silentNode is a node whose Node does not name its instance, as those of K3s, RKE2 and kubeadm without a cloud controller.
func silentNode(name, providerID string, addresses ...string) *corev1.Node {
	n := nodeOf(name, name)
	n.Spec.ProviderID = providerID
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return n
}

// held keeps pods from being evicted.
func held(int) error { return errors.New("not now") }

func TestLook_LeavesTheNextNodeOfThatNameAlone(t *testing.T) {
	type row struct {
		notice func() sqs.Notice
		waits  bool // in the line
	}
	rows := map[string]row{}
	for name, n := range map[string]func() sqs.Notice{
		"a state change": func() sqs.Notice { return notice(instance, event.StateChange, "shutting-down", 0) },
		"a termination":  func() sqs.Notice { return termination(instance) },
		"for spot":       func() sqs.Notice { return spot(instance) },
	} {
		rows[name+" in the line"], rows[name+" in mid-drain"] = row{n, true}, row{n, false}
	}
	each(t, rows, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"), nodeOf("b", other), podOn("b", "two"))
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) {
			o.EC2 = &knowledge{states: map[string]string{instance: "shutting-down", other: "running", third: "running"}}
			o.Taints = fleet.Taints{Kinds: true, Effect: "NoExecute"}
			if row.waits {
				o.Limits.Draining = 1
			}
		})
		first := r.take(notice(other, event.RebalanceRecommendation, "", 0))
		time.Sleep(2 * time.Second)
		n := row.notice()
		second := r.take(n)
		time.Sleep(10 * time.Second)
		c.remove("a")
		time.Sleep(5 * time.Second)
		c.add(nodeOf("a", third), podOn("a", "innocent")) // another machine's
		second.want(t, "done")
		c.before("evict", nil)
		first.want(t, "done")
		time.Sleep(time.Minute)
		c.wantUntouched("a")
		if n.Hook != nil {
			r.hooks.want(t, "drain "+instance+" drained")
		}
	})
}

// A Node is deleted in mid-drain, and the kubelet of the same machine registers it again.
func TestLook_DrainsANodeThatIsRegisteredAgain(t *testing.T) {
	type row struct {
		notice func() sqs.Notice
		after  time.Duration
	}
	stop := func() sqs.Notice { return notice(instance, event.StateChange, "stopping", 0) }
	each(t, map[string]row{
		"a stop, at once":          {stop, 0},
		"a stop, and a look later": {stop, 5 * time.Second},
		"a termination":            {func() sqs.Notice { return termination(instance) }, 5 * time.Second},
		"spot":                     {func() sqs.Notice { return spot(instance) }, 40 * time.Second},
		"a launch":                 {func() sqs.Notice { return launch(instance) }, 5 * time.Second},
	}, func(t *testing.T, c *cluster, row row) {
		first := nodeOf("a", instance)
		first.Status.Conditions[0].Status = corev1.ConditionFalse // A launch waits for it.
		c.add(first, podOn("a", "one"))
		c.before("evict", held)
		r := c.run(func(o *fleet.Options) {
			o.EC2, o.CompleteLaunches = &knowledge{states: map[string]string{instance: "stopping"}}, true
		})
		m := r.take(row.notice())
		time.Sleep(10 * time.Second)
		c.remove("a")
		time.Sleep(row.after)
		again := nodeOf("a", instance)
		again.UID = "uid-2"
		c.add(again)
		c.before("evict", nil)
		m.want(t, "done")
		c.want("a", row.notice().About == sqs.Interruption)
	})
}

// A machine of K3s is replaced by another one of the same name, which takes over its Node.
func TestLook_LeavesAMachineAloneThatTakesANodeOver(t *testing.T) {
	const address = "10.0.1.2"
	each(t, map[string]string{"with another address": "10.0.1.3", "with the same address": address}, func(t *testing.T, c *cluster, next string) {
		n := silentNode("worker-1", "k3s://worker-1", address)
		n.Status.NodeInfo.SystemUUID = "machine-1"
		c.add(n, podOn("worker-1", "one"))
		c.before("evict", held)
		says := &knowledge{states: map[string]string{instance: "running"}, addresses: map[string]string{instance: address}}
		r := c.run(func(o *fleet.Options) { o.EC2 = says })
		m := r.take(notice(instance, event.RebalanceRecommendation, "", 0))
		time.Sleep(10 * time.Second)
		says.say(func(k *knowledge) { k.states[instance], k.addresses = "terminated", nil })
		c.change("worker-1", func(n *corev1.Node) {
			n.Status.NodeInfo.SystemUUID, n.Status.NodeInfo.BootID, n.Status.Addresses[0].Address = "machine-2", "boot-2", next
		})
		m.want(t, "done")
		c.before("evict", nil)
		time.Sleep(time.Minute)
		if pods := c.podsOn("worker-1"); len(pods) != 1 {
			t.Errorf("the pods that are left on the next machine are %q", pods)
		}
	})
}

func TestLook_FindsNodesThatDoNotNameTheirInstance(t *testing.T) {
	const address = "10.0.1.2"
	type row struct {
		node    *corev1.Node
		more    []*corev1.Node
		ec2     *knowledge
		cluster string
		said    string // "" if the node is drained
	}
	each(t, map[string]row{
		"K3s":                         {node: silentNode("ip-10-0-1-2", "k3s://ip-10-0-1-2", address), ec2: &knowledge{}},
		"RKE2":                        {node: silentNode("worker-1", "rke2://worker-1", address), ec2: &knowledge{}},
		"kubeadm":                     {node: silentNode("Worker.example.com", "", address), ec2: &knowledge{}},
		"an IPv6 address comes first": {node: silentNode("a", "k3s://a", "2001:db8::1", address), ec2: &knowledge{}},
		"another VPC's with another cluster's tag": {
			node: silentNode("a", "k3s://a", address), cluster: "mine",
			ec2:  &knowledge{clusters: map[string][]string{instance: {"theirs"}, other: {"mine"}}, addresses: map[string]string{other: address}},
			said: "belongs to another cluster",
		},
		"another VPC's, as the tags tell": {
			node: silentNode("a", "k3s://a", address), cluster: "mine",
			ec2: &knowledge{clusters: map[string][]string{instance: {"mine"}, other: {"theirs"}}, addresses: map[string]string{other: address}},
		},
		"two instances, and no tags": {
			node: silentNode("a", "k3s://a", address), ec2: &knowledge{addresses: map[string]string{other: address}}, said: "set fleet.cluster",
		},
		"two instances, and EC2 is busy": {
			node: silentNode("a", "k3s://a", address), said: "set fleet.cluster",
			ec2: &knowledge{addresses: map[string]string{other: address}, unsure: errors.New("throttled")},
		},
		"two Nodes of one address": {
			node: silentNode("a", "k3s://a", address), more: []*corev1.Node{silentNode("b", "k3s://b", address)}, ec2: &knowledge{}, said: "2 Nodes have the address",
		},
		"a hybrid node": {node: silentNode("a", "eks-hybrid:///eu-central-1/mine/mi-1", address), ec2: &knowledge{}, said: "has no Node"},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(row.node, podOn(row.node.Name, "one"))
		for _, n := range row.more {
			c.add(n)
		}
		r := c.run(func(o *fleet.Options) {
			row.ec2.states = map[string]string{instance: "running", other: "running"}
			if row.ec2.addresses == nil {
				row.ec2.addresses = map[string]string{}
			}
			row.ec2.addresses[instance] = address
			o.EC2, o.Cluster = row.ec2, row.cluster
		})
		n := spot(instance)
		n.Event.Deadline = n.Event.Deadline.Add(-3 * time.Minute) // It joins no more.
		r.take(n).want(t, "done")
		if row.said == "" {
			c.wantDrained(row.node.Name)
			return
		}
		c.wantUntouched(row.node.Name)
		if !strings.Contains(r.log.String(), row.said) {
			t.Errorf("%q was not said: %s", row.said, r.log)
		}
	})
}

// Two VPCs have the same addresses, and the tags say which instance is in this cluster.
func TestPoll_OpensASilentNodeAfterAChangeOfLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(silentNode("a", "k3s://a", "10.0.1.2"), podOn("a", "one"))
		says := &knowledge{
			states: map[string]string{instance: "stopping", other: "running"}, addresses: map[string]string{instance: "10.0.1.2", other: "10.0.1.2"},
			clusters: map[string][]string{instance: {"mine"}, other: {"theirs"}},
		}
		change := func(o *fleet.Options) { o.EC2, o.Cluster = says, "mine" }
		r := c.run(change)
		r.take(notice(instance, event.StateChange, "stopping", 0)).want(t, "done")
		c.wantDrained("a")
		r.stop()
		c.start("host-2", change)
		says.starts(instance)
		c.goesDown("a", "boot-2")
		eventually(t, "the node is open", func() bool { return !c.node("a").Spec.Unschedulable })
	})
}

func TestLook_FindsAnInstanceThatJoinsAfterItsMessage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		r := c.run(func(o *fleet.Options) {
			o.Cluster, o.EC2 = "mine", &knowledge{states: map[string]string{instance: "running"}, clusters: map[string][]string{instance: {"mine"}}}
		})
		m := r.take(spot(instance))
		time.Sleep(30 * time.Second)
		c.add(nodeOf("a", instance), podOn("a", "one"))
		m.want(t, "done")
		c.wantDrained("a")
	})
}

func TestLook_SettlesMessagesOfInstancesWithoutANode(t *testing.T) {
	mine, theirs := []string{"mine"}, []string{"theirs"}
	type row struct {
		notice    sqs.Notice
		tags      []string
		err       error
		dry       bool
		want      string
		completed []string
	}
	each(t, map[string]row{
		"another cluster's":                   {notice: notice(third, event.StateChange, "stopping", 0), tags: theirs, want: "done"},
		"nobody's":                            {notice: notice(third, event.StateChange, "stopping", 0), want: "done"},
		"nobody's, in a dry run":              {notice: notice(third, event.StateChange, "stopping", 0), dry: true, want: "done"},
		"nobody's, and EC2 fails":             {notice: notice(third, event.StateChange, "stopping", 0), err: errors.New("throttled"), want: "done"},
		"this cluster's":                      {notice: notice(third, event.StateChange, "stopping", 0), tags: mine, want: "done"},
		"this cluster's, and its group waits": {notice: termination(third), tags: mine, want: "done", completed: []string{"drain " + third + " drained"}},
		"nobody's, and its group waits":       {notice: termination(third), want: "done"},
		"a reservation's, and EC2 fails": {
			notice: sqs.Notice{About: sqs.Interruption, Reservation: "cr-1", Event: event.Event{ID: "end", Kind: event.ReservationEnd}},
			err:    errors.New("throttled"), want: "done",
		},
		"a reservation's that is over, and EC2 fails": {
			notice: sqs.Notice{About: sqs.Interruption, Reservation: "cr-1", Event: event.Event{ID: "end", Kind: event.ReservationEnd, Deadline: time.Unix(1, 0)}},
			err:    errors.New("throttled"), want: "returned",
		},
	}, func(t *testing.T, c *cluster, row row) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		says := &knowledge{
			states: map[string]string{third: "running"}, clusters: map[string][]string{instance: mine, third: row.tags}, err: row.err,
		}
		r := c.run(func(o *fleet.Options) { o.DryRun, o.Cluster, o.EC2 = row.dry, "mine", says })
		time.AfterFunc(time.Minute, func() { says.say(func(k *knowledge) { k.err = nil }) })
		r.take(row.notice).want(t, row.want)
		r.hooks.want(t, row.completed...)
		c.wantUntouched("a")
	})
}
