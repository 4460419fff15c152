package fleet_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
)

// removed deletes a Node if it is the one, in the version, that is meant.
func (c *cluster) removed(w http.ResponseWriter, r *http.Request) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil || c.begins(w, "remove") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes, name := c.store.CoreV1().Nodes(), r.PathValue("name")
	n, err := nodes.Get(r.Context(), name, metav1.GetOptions{})
	switch as := options.Preconditions; {
	case err != nil:
	case as == nil || as.UID == nil || as.ResourceVersion == nil:
		c.t.Errorf("node %q is to be deleted whoever's it is by now: %+v", name, options)
	case *as.UID != n.UID || *as.ResourceVersion != n.ResourceVersion:
		err = apierrors.NewConflict(corev1.Resource("nodes"), name, errors.New("it is another one"))
	default:
		err = nodes.Delete(r.Context(), name, metav1.DeleteOptions{})
	}
	answer(w, &metav1.Status{Status: metav1.StatusSuccess}, err)
}

// names are those of all Nodes.
func (c *cluster) names() (names []string) {
	all, err := c.store.CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, n := range all.Items {
		names = append(names, n.Name)
	}
	return names
}

// removing drains for everything, and deletes the Nodes of instances that EC2 calls terminated.
func removing(ec2 fleet.Instances) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.DeleteNode, o.Instances = true, ec2
	}
}

// silence makes a Node one whose kubelet is not heard of any more.
func silence(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

// attach makes a Node one to which a volume is attached, or to which none is any more.
func attach(volumes ...corev1.AttachedVolume) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.VolumesAttached = volumes }
}

func TestTheNodeOfATerminatedInstanceIsDeleted(t *testing.T) {
	t.Parallel()
	gone := func() []sqs.Notice { return entered(instance, "terminated", time.Second) }
	for name, row := range map[string]struct {
		notices func() []sqs.Notice
		state   string // what EC2 says; "" if it does not know it any more
		prepare func(c *cluster)
		change  func(o *fleet.Options)
		stays   bool
	}{
		"EC2 says so":                          {notices: gone, state: "terminated"},
		"EC2 does not know it any more":        {notices: gone},
		"it was to be cordoned only":           {notices: gone, state: "terminated", change: func(o *fleet.Options) { o.Policy[event.StateChange] = policy.Rule{Action: policy.Cordon} }},
		"it was told three days ago":           {notices: func() []sqs.Notice { return entered(instance, "terminated", days) }},
		"nobody asked for that":                {notices: gone, state: "terminated", change: func(o *fleet.Options) { o.DeleteNode = false }, stays: true},
		"it is a dry run":                      {notices: gone, state: "terminated", change: func(o *fleet.Options) { o.DryRun = true }, stays: true},
		"it was to be told only":               {notices: gone, state: "terminated", change: func(o *fleet.Options) { o.Policy[event.StateChange] = policy.Rule{Action: policy.Notify} }, stays: true},
		"EC2 cannot be asked at all":           {notices: gone, change: func(o *fleet.Options) { o.Instances = nil }, stays: true},
		"it has stopped":                       {notices: func() []sqs.Notice { return entered(instance, "stopped", time.Second) }, state: "stopped", stays: true},
		"it is shutting down":                  {notices: func() []sqs.Notice { return entered(instance, "shutting-down", time.Second) }, state: "terminated", stays: true},
		"it is taken for spot":                 {notices: func() []sqs.Notice { return reclaimed(instance, "terminate", time.Second) }, state: "terminated", stays: true},
		"EC2 goes on to say that it runs":      {notices: gone, state: "running", stays: true},
		"EC2 goes on to say that it is ending": {notices: gone, state: "shutting-down", stays: true},
		"nobody knows whether it is managed":   {notices: gone, change: func(o *fleet.Options) { o.ManagedOnly = true }, stays: true},
		"people want the node left as it is":   {notices: gone, state: "terminated", prepare: func(c *cluster) { c.change("a", asking(drain.LeaveNode)) }, stays: true},
		"another machine has its name": {notices: gone, prepare: func(c *cluster) {
			c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		}, stays: true},
		"it may not be deleted": {notices: gone, prepare: func(c *cluster) { c.before("remove", forbidden) }, stays: true},
		"the API server fails at first": {notices: gone, prepare: func(c *cluster) {
			c.before("remove", func(times int) error {
				if times > 1 {
					return nil
				}
				return apierrors.NewInternalError(errors.New("broken"))
			})
		}},
		"somebody writes to it meanwhile": {notices: gone, prepare: func(c *cluster) {
			c.before("remove", func(times int) error {
				if times <= 3 {
					c.change("a", func(n *corev1.Node) { n.Labels = map[string]string{"theirs": string('0' + rune(times))} })
				}
				return nil
			})
		}},
		"another one has its name by the time it is deleted": {notices: gone, prepare: func(c *cluster) {
			c.before("remove", func(times int) error {
				if times == 1 {
					c.remove("a")
					c.add(nodeOf("a", other, nil))
				}
				return nil
			})
		}, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				a := nodeOf("a", instance, nil)
				silence(a)
				c.add(a, podOn("a", "one"), nodeOf("b", "i-0bbbbbbbbbbbbbbbb", nil))
				if row.prepare != nil {
					row.prepare(c)
				}
				ec2 := &knowledge{states: map[string]string{}}
				if row.state != "" {
					ec2.states[instance] = row.state
				}
				r := c.run(func(o *fleet.Options) {
					removing(ec2)(o)
					if row.change != nil {
						row.change(o)
					}
				})
				r.toTheEnd(t, row.notices(), 30)
				want := []string{"a", "b"}
				if !row.stays {
					want = want[1:]
				}
				if got := c.names(); !slices.Equal(got, want) {
					t.Errorf("there are the Nodes %q, want %q", got, want)
				}
			})
		})
	}
}

func TestTheNodeOfATerminatedInstanceIsDeletedAfterItsPodsAreGone(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		a := nodeOf("a", instance, nil)
		silence(a)
		c.add(a, podOn("a", "one"), podOn("a", "two"))
		c.before("remove", func(int) error {
			if left := c.podsOn("a"); len(left) > 0 || c.times("evict") != 2 {
				t.Errorf("with the pods %q, after %d evictions", left, c.times("evict"))
			}
			return nil
		})
		c.run(removing(&knowledge{})).toTheEnd(t, entered(instance, "terminated", time.Second), 1)
		if left := c.names(); len(left) > 0 {
			t.Errorf("there are the Nodes %q", left)
		}
	})
}

// With the Node goes its taint, by which Kubernetes takes volumes at once from a machine that is off, and not in six minutes.
func TestTheNodeOfATerminatedInstanceStaysForAsLongAsVolumesAreAttached(t *testing.T) {
	t.Parallel()
	volume := corev1.AttachedVolume{Name: "kubernetes.io/csi/ebs.csi.aws.com^vol-0123456789abcdef0"}
	for name, row := range map[string]struct {
		detached time.Duration
		budget   time.Duration
		ending   time.Duration
		least    time.Duration
		most     time.Duration
	}{
		"they are detached after a while":         {detached: 20 * time.Second, least: 20 * time.Second, most: time.Minute},
		"they are never detached":                 {detached: never, least: 6 * time.Minute, most: 8 * time.Minute},
		"they are never, and the pods do not end": {detached: never, ending: never, budget: 5 * time.Minute, least: 6 * time.Minute, most: 8 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				if row.ending > 0 {
					c.ending = row.ending
				}
				a := nodeOf("a", instance, nil)
				silence(a)
				attach(volume)(a)
				c.add(a, podOn("a", "one"))
				tainted := false
				c.before("remove", func(int) error {
					tainted = slices.Contains(c.taintsOf("a"), "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
					return nil
				})
				r := c.run(func(o *fleet.Options) {
					removing(&knowledge{})(o)
					o.Taints.OutOfService = true
					o.Policy[event.StateChange] = policy.Rule{Action: policy.Drain, Budget: row.budget}
				})
				began := time.Now()
				if row.detached < never {
					time.AfterFunc(row.detached, func() { c.change("a", attach()) })
				}
				r.toTheEnd(t, entered(instance, "terminated", time.Second), 100)
				if took := time.Since(began); took < row.least || took > row.most || !tainted || len(c.names()) > 0 {
					t.Errorf("after %s there are the Nodes %q; tainted: %t", took, c.names(), tainted)
				}
			})
		})
	}
}

func TestTheNodeOfATerminatedInstanceIsDeletedOnceItsKubeletIsNotHeardOfAnyMore(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		time.AfterFunc(50*time.Second, func() { c.change("a", silence) })
		c.before("remove", func(int) error {
			if c.node("a").Status.Conditions[0].Status == corev1.ConditionTrue {
				t.Error("it is Ready, and deleted")
			}
			return nil
		})
		c.run(removing(&knowledge{})).toTheEnd(t, entered(instance, "terminated", time.Second), 1)
		if left := c.names(); len(left) > 0 {
			t.Errorf("there are the Nodes %q", left)
		}
	})
}

func TestWhoStopsWhileANodeIsToBeDeletedLeavesThatToOthersAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance, nil))
		m := newParcel()
		first := c.run(removing(&knowledge{}))
		first.Take(entered(instance, "terminated", time.Second), 1, m)
		synctest.Wait()
		first.stop()
		if became := m.want(t, "returned"); became.after != 0 {
			t.Errorf("the message went back for %s", became.after)
		}
		c.change("a", silence)
		c.run(removing(&knowledge{})).toTheEnd(t, entered(instance, "terminated", time.Second), 2)
		if left := c.names(); len(left) > 0 {
			t.Errorf("there are the Nodes %q", left)
		}
	})
}
