package fleet_test

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/state"
)

// AWS Health has written of it, and EC2 knows nothing of it.
func TestMaintenanceThatEC2NeverListsIsOver(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		in      time.Duration
		held    bool
		evicted int
	}{
		"its node is drained":       {in: 100 * time.Minute, evicted: 1},
		"its node is being drained": {in: 100 * time.Minute, held: true},
		"its time has not come":     {in: 100 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				if row.held {
					c.before("evict", held)
				}
				r := c.run(within(&schedule{}))
				r.Take(announced(at("instance-stop", row.in), event.Pending, 0), 1, newParcel())
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if closed := c.node("a").Spec.Unschedulable; closed != (row.in < 2*time.Hour) {
					t.Fatalf("while EC2 may be behind, the node is closed: %t", closed)
				}
				if !row.held && c.node("a").Annotations[fleet.NotesAnnotation] == "" {
					t.Error("while EC2 may be behind, nothing is noted")
				}
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				n := c.node("a")
				if n.Spec.Unschedulable || n.Annotations[drain.CordonAnnotation] != "" || n.Annotations[fleet.NotesAnnotation] != "" || c.holder("a") != "" {
					t.Errorf("half an hour after the message the node is closed: %t, with %v", n.Spec.Unschedulable, n.Annotations)
				}
				if told := r.ear.whats("a"); len(told) == 0 || told[len(told)-1] != state.Done && told[len(told)-1] != state.ClosedWith {
					t.Errorf("what was told is %v", told)
				}
			})
		})
	}
}

// A look at EC2 may miss it, once now and once much later. It is over when it is missed for a while.
func TestMaintenanceThatEC2DoesNotListForAMomentStands(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		c.before("evict", held)
		stop := at("instance-stop", 100*time.Minute)
		s := (&schedule{}).say(instance, stop)
		c.run(within(s))
		for range 2 {
			time.Sleep(20 * time.Minute)
			c.wantCordoned(true, c.times("evict"), "while it is listed")
			s.say(instance)
			time.Sleep(2 * time.Minute)
			c.wantCordoned(true, c.times("evict"), "while a look misses it")
			s.say(instance, stop)
		}
	})
}

// The node that is drained first takes its time.
func TestMaintenanceThatIsCalledOffWhileItsNodeWaitsInTheLineLeavesIt(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change  func(s *schedule, p ec2.Planned)
		also    bool // the group terminates the instance as well
		waiting int
	}{
		"it is canceled":                         {func(s *schedule, p ec2.Planned) { s.say(instance, canceled(p)) }, false, 0},
		"EC2 lists it no more":                   {func(s *schedule, _ ec2.Planned) { s.say(instance) }, false, 0},
		"it is canceled, and terminated as well": {func(s *schedule, p ec2.Planned) { s.say(instance, canceled(p)) }, true, 1},
		"it stands":                              {func(*schedule, ec2.Planned) {}, false, 1},
		"it stands, and is moved by a few minutes": {func(s *schedule, p ec2.Planned) {
			p.NotBefore = p.NotBefore.Add(5 * time.Minute)
			s.say(instance, p)
		}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				c.add(nodeOf("b", other, nil), podOn("b", "two"))
				c.before("evict", held)
				stop := at("instance-stop", 100*time.Minute)
				s := &schedule{}
				r := c.run(func(o *fleet.Options) {
					within(s)(o)
					o.Limits.Draining = 1
				})
				r.Take(endless(other), 1, newParcel())
				time.Sleep(10 * time.Second)
				s.say(instance, stop)
				if row.also {
					r.Take(timeless(instance), 1, newParcel())
				}
				time.Sleep(2 * time.Minute)
				if waiting := r.Status().Waiting; waiting != 1 {
					t.Fatalf("%d nodes wait before anything is called off", waiting)
				}
				row.change(s, stop)
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				if stands := r.Status(); stands.Waiting != row.waiting || stands.Draining != 1 {
					t.Errorf("%d nodes wait, and %d are drained, want %d and 1", stands.Waiting, stands.Draining, row.waiting)
				}
				if row.waiting == 0 {
					c.wantCordoned(false, c.times("evict"), "after it left the line")
				}
			})
		})
	}
}

// K3s gives its Nodes IDs of its own.
func TestMaintenanceOfANodeThatDoesNotTellItsInstanceIsTakenBackIfItIsCanceled(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		held      bool // its pods do not go
		restarted bool
		unlisted  bool // EC2 does not say that it is canceled
	}{
		"during its drain":                          {held: true},
		"after its drain":                           {},
		"after its drain, and EC2 lists it no more": {unlisted: true},
		"after a restart":                           {restarted: true},
		"during its drain, after a restart":         {held: true, restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				n := nodeOf("a", instance, nil)
				n.Spec.ProviderID = "k3s://a"
				n.Status.NodeInfo.BootID = "boot-1"
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: "a.internal"}}
				c.add(n, podOn("a", "one"))
				if row.held {
					c.before("evict", held)
				}
				stop := at("instance-stop", 100*time.Minute)
				s := (&schedule{}).say(instance, stop)
				change := func(o *fleet.Options) {
					within(s)(o)
					o.Instances = &knowledge{
						states: map[string]string{instance: "running"}, managed: map[string]bool{instance: true}, dns: map[string]string{instance: "a.internal"},
					}
				}
				r, m := c.run(change), newParcel()
				r.Take(announced(stop, event.Pending, 0), 1, m)
				time.Sleep(10 * time.Minute)
				if !c.node("a").Spec.Unschedulable {
					t.Fatal("its drain has not begun")
				}
				if row.restarted {
					r.stop()
					r = c.run(change)
					if became := <-m.became; became.what == "returned" {
						r.Take(announced(stop, event.Pending, 10*time.Minute), 2, newParcel())
					}
					time.Sleep(10 * time.Minute)
					c.wantCordoned(true, c.times("evict"), "after the restart")
				}
				if row.unlisted {
					s.say(instance)
				} else {
					s.say(instance, canceled(stop))
				}
				time.Sleep(20 * time.Minute)
				c.wantCordoned(false, c.times("evict"), "after it was called off")
				if n := c.node("a"); n.Annotations[drain.CordonAnnotation] != "" || n.Annotations[fleet.NotesAnnotation] != "" || c.holder("a") != "" {
					t.Errorf("what is left on the node is %v", n.Annotations)
				}
				tried := c.times("evict")
				time.Sleep(10 * time.Minute)
				c.wantCordoned(false, tried, "a while later")
			})
		})
	}
}
