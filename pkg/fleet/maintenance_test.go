package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/state"
)

// schedule is what EC2 has scheduled.
type schedule struct {
	mu       sync.Mutex
	statuses map[string]ec2.Status
	err      error
}

// say changes what EC2 tells of an instance.
func (s *schedule) say(id string, planned ...ec2.Planned) *schedule {
	return s.tell(id, ec2.Status{Planned: planned})
}

func (s *schedule) tell(id string, status ec2.Status) *schedule {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.statuses == nil {
		s.statuses = map[string]ec2.Status{}
	}
	s.statuses[id] = status
	return s
}

// fail makes EC2 answer with an error.
func (s *schedule) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Status implements fleet.Schedule.
func (s *schedule) Status(_ context.Context, id string) (ec2.Status, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statuses[id], true, s.err
}

// Notable implements fleet.Schedule.
func (s *schedule) Notable(_ context.Context, checks bool) (map[string]ec2.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	notable := maps.Clone(s.statuses)
	maps.DeleteFunc(notable, func(_ string, is ec2.Status) bool {
		return len(is.Planned) == 0 && (is.Impaired == "" || !checks)
	})
	return notable, s.err
}

// within drains ten minutes before a reboot, and two hours before a stop or a retirement.
func within(s *schedule) func(*fleet.Options) {
	return func(o *fleet.Options) {
		draining(o)
		o.UncordonStarted = true
		o.Policy[event.ScheduledMaintenance] = policy.Rule{
			Action: policy.Drain, Lead: 10 * time.Minute, Window: 2 * time.Hour, Kept: 13 * 24 * time.Hour, Codes: map[string]policy.When{
				"system-reboot": policy.Lead, "instance-stop": policy.Window, "instance-retirement": policy.Window, "other": policy.OnlyNotify,
			},
		}
		if s != nil {
			o.Schedule = s
		}
	}
}

const planID = "instance-event-0123456789abcdef0"

// at is an event that is due in some time.
func at(code string, in time.Duration) ec2.Planned {
	return ec2.Planned{ID: planID, Code: code, Description: "scheduled " + code, NotBefore: time.Now().Add(in).UTC().Round(0)}
}

func canceled(p ec2.Planned) ec2.Planned {
	p.Canceled = true
	return p
}

// announced is the message about such an event, of some time ago.
func announced(p ec2.Planned, state event.State, ago time.Duration) []sqs.Notice {
	return []sqs.Notice{{About: sqs.Interruption, Instance: instance, Event: event.Event{
		ID: "scheduled-maintenance-0123", Kind: event.ScheduledMaintenance, Code: p.Code, State: state, Deadline: p.NotBefore,
		Noticed: time.Now().Add(-ago).Round(0),
	}}}
}

// booted is a node with a pod, in its first boot.
func (c *cluster) booted() {
	n := nodeOf("a", instance, nil)
	n.Status.NodeInfo.BootID = "boot-1"
	c.add(n, podOn("a", "one"))
}

func (c *cluster) wantCordoned(want bool, evicted int, when string) {
	c.t.Helper()
	synctest.Wait()
	if n := c.node("a"); n.Spec.Unschedulable != want || c.times("evict") != evicted {
		c.t.Errorf("%s: cordoned: %t, %d pods were evicted, want %t and %d; the annotations are %v",
			when, n.Spec.Unschedulable, c.times("evict"), want, evicted, n.Annotations)
	}
}

// reboot takes the node down for a minute, and brings it back in another boot.
func (c *cluster) reboot(boot string) {
	c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
	time.Sleep(time.Minute)
	c.change("a", func(n *corev1.Node) {
		n.Status.NodeInfo.BootID = boot
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionTrue, metav1.Now()
	})
}

func TestACanceledMaintenanceIsNotDrainedFor(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		cancel func(*schedule, ec2.Planned)
		told   int
	}{
		"EC2 says so":          {func(s *schedule, p ec2.Planned) { s.say(instance, canceled(p)) }, 1},
		"EC2 lists it no more": {func(s *schedule, _ ec2.Planned) { s.say(instance) }, 1},
		"it has happened":      {func(s *schedule, p ec2.Planned) { p.Completed = true; s.say(instance, p) }, 1},
		"it was moved to next month": {func(s *schedule, p ec2.Planned) {
			p.NotBefore = p.NotBefore.Add(30 * 24 * time.Hour)
			s.say(instance, p)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				reboot := at("system-reboot", 40*time.Minute)
				s := (&schedule{}).say(instance, reboot)
				r := c.run(within(s))
				message, first := announced(reboot, event.Pending, 0), newParcel()
				r.Take(message, 1, first)
				first.want(t, "done") // EC2 keeps it in mind, and the fleet.
				time.Sleep(20 * time.Minute)
				row.cancel(s, reboot)
				again := newParcel()
				r.Take(message, 2, again)
				again.want(t, "done")
				time.Sleep(time.Hour)
				c.wantCordoned(false, 0, "long after it was due")
				told := r.ear.whats("a")
				if over := row.told == 1; count(told, state.Announced) != row.told || (count(told, state.ClosedWith) > 0) != over {
					t.Errorf("what was told is %v", told)
				}
			})
		})
	}
}

func count(told []state.TransitionKind, what state.TransitionKind) int {
	return len(slices.DeleteFunc(slices.Clone(told), func(w state.TransitionKind) bool { return w != what }))
}

func TestWhatWasDoneForMaintenanceIsTakenBackIfItIsCanceled(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		cancel func(*schedule, ec2.Planned)
		within time.Duration
	}{
		"EC2 says so":          {func(s *schedule, p ec2.Planned) { s.say(instance, canceled(p)) }, 2 * time.Minute},
		"EC2 lists it no more": {func(s *schedule, _ ec2.Planned) { s.say(instance) }, 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				stop := at("instance-stop", 100*time.Minute)
				s := (&schedule{}).say(instance, stop)
				r := c.run(within(s))
				m := newParcel()
				r.Take(announced(stop, event.Pending, 0), 1, m)
				m.want(t, "done")
				time.Sleep(time.Minute)
				c.wantCordoned(true, 1, "in its window")
				r.stop() // Another process knows it by the Node and by EC2 alone.
				r = c.run(within(s))
				time.Sleep(10 * time.Minute)
				c.wantCordoned(true, 1, "after a restart")
				row.cancel(s, stop)
				time.Sleep(row.within)
				c.wantCordoned(false, 1, "after it was called off")
				if n := c.node("a"); n.Annotations[drain.CordonAnnotation] != "" || n.Annotations[fleet.NotesAnnotation] != "" || c.holder("a") != "" {
					t.Errorf("what is left on the node is %v", n.Annotations)
				}
				if told := r.ear.whats("a"); !slices.Equal(told, []state.TransitionKind{state.Begun, state.Done}) {
					t.Errorf("what was told is %v", told)
				}
			})
		})
	}
}

func TestADrainUnderWayIsTakenBackWhenItsMaintenanceIsCanceled(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		c.before("evict", func(int) error { return apierrors.NewTooManyRequests("busy", 1) })
		stop := at("instance-stop", 100*time.Minute)
		s := (&schedule{}).say(instance, stop)
		m := newParcel()
		c.run(within(s)).Take(announced(stop, event.Pending, 0), 1, m)
		time.Sleep(10 * time.Minute)
		if !c.node("a").Spec.Unschedulable {
			t.Fatal("its drain has not begun")
		}
		s.say(instance, canceled(stop))
		time.Sleep(2 * time.Minute)
		m.want(t, "done")
		c.wantCordoned(false, c.times("evict"), "after it was called off")
		tried := c.times("evict")
		time.Sleep(20 * time.Minute)
		c.wantCordoned(false, tried, "a while later")
	})
}

// The customer may move it, and AWS does.
func TestMaintenanceThatIsMovedIsDrainedForWhenItIsDueThen(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		stop := at("instance-stop", 100*time.Minute)
		s := (&schedule{}).say(instance, stop)
		c.run(within(s))
		time.Sleep(time.Minute)
		c.wantCordoned(true, 1, "in its window")
		stop.NotBefore = stop.NotBefore.Add(time.Hour)
		s.say(instance, stop)
		time.Sleep(2 * time.Minute)
		c.wantCordoned(false, 1, "after it was moved")
		c.add(podOn("a", "two"))
		time.Sleep(30 * time.Minute)
		c.wantCordoned(false, 1, "before its window")
		time.Sleep(10 * time.Minute)
		c.wantCordoned(true, 2, "in its window")
	})
}

func TestWhatWasAnnouncedBeforeIsKnownFromEC2(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"no message is left of it": false, "its message is thirteen days old": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				retirement := at("instance-retirement", 160*time.Minute)
				s := (&schedule{}).say(instance, retirement).say(other, at("instance-retirement", time.Hour)) // The latter is no Node here.
				r := c.run(within(s))
				if old {
					m := newParcel()
					r.Take(announced(retirement, event.Pending, 13*24*time.Hour), 1, m)
					m.want(t, "done")
				}
				time.Sleep(30 * time.Minute)
				c.wantCordoned(false, 0, "before its window")
				time.Sleep(20 * time.Minute)
				c.wantCordoned(true, 1, "in its window")
				if told := r.ear.whats("a"); count(told, state.Announced) != 1 || count(told, state.Done) != 1 {
					t.Errorf("what was told is %v", told)
				}
			})
		})
	}
}

func TestWhatEveryProcessSeesIsToldAndDoneOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		s := (&schedule{}).say(instance, at("instance-stop", 150*time.Minute))
		rigs := []*rig{c.run(within(s)), c.run(within(s))}
		time.Sleep(20 * time.Minute)
		rigs[1].stop()
		rigs = append(rigs, c.run(within(s)))
		time.Sleep(20 * time.Minute)
		c.wantCordoned(true, 1, "in its window")
		rigs = append(rigs, c.run(within(s)))
		time.Sleep(10 * time.Minute)
		c.wantCordoned(true, 1, "a while later")
		var told []state.TransitionKind
		for _, r := range rigs {
			told = append(told, r.ear.whats("a")...)
		}
		if count(told, state.Announced) != 1 || count(told, state.Done) != 1 {
			t.Errorf("what was told is %v", told)
		}
	})
}

func TestWithoutThePermissionAMessageCountsAsItWasWritten(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"IAM refuses it":      {fmt.Errorf("asking EC2: %w", ec2.ErrRefused), "maintenance is drained for as it was once announced"},
		"EC2 does not answer": {errors.New("not now"), "what EC2 has scheduled stands as it was known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				var said bytes.Buffer
				s := &schedule{}
				s.fail(row.err)
				r := c.run(func(o *fleet.Options) {
					within(s)(o)
					logger := logrus.New()
					logger.SetOutput(&said)
					o.Log = logrus.NewEntry(logger)
				})
				reboot := at("system-reboot", 30*time.Minute)
				first, second := newParcel(), newParcel()
				r.Take(announced(reboot, event.Pending, 0), 1, first)
				became := first.want(t, "returned")
				time.Sleep(became.after)
				r.Take(announced(reboot, event.Pending, 20*time.Minute), 2, second)
				second.want(t, "done")
				time.Sleep(30 * time.Minute)
				c.wantCordoned(true, 1, "when it is due")
				r.stop()
				if times := strings.Count(said.String(), row.want); times != 1 {
					t.Errorf("it was said %d times: %s", times, &said)
				}
			})
		})
	}
}

func TestACordonForAScheduledRebootIsLiftedOnceTheMachineIsBack(t *testing.T) {
	t.Parallel()
	stopped := func(c *cluster, r *rig, s *schedule) *rig { r.stop(); return c.run(within(s)) }
	for name, row := range map[string]struct {
		code    string
		asked   bool
		between func(*cluster, *rig, *schedule) *rig
		lifted  bool
	}{
		"EC2 is not asked":                     {code: "system-reboot", lifted: true},
		"EC2 lists it still":                   {code: "system-reboot", asked: true, lifted: true},
		"of the instance":                      {code: "instance-reboot", asked: true, lifted: true},
		"the process was started again":        {code: "system-reboot", between: stopped, lifted: true},
		"the same, and EC2 is asked":           {code: "system-reboot", asked: true, between: stopped, lifted: true},
		"it was somebody's, and a stop is due": {code: "instance-stop", asked: true},
		"people have cordoned it, too": {code: "system-reboot", between: func(c *cluster, r *rig, _ *schedule) *rig {
			c.change("a", func(n *corev1.Node) { delete(n.Annotations, drain.CordonAnnotation) })
			return r
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				planned := at(row.code, 5*time.Minute)
				var s *schedule
				if row.asked {
					s = (&schedule{}).say(instance, planned)
				}
				change := within(s)
				r := c.run(func(o *fleet.Options) {
					change(o)
					o.Policy[event.ScheduledMaintenance].Codes["instance-reboot"] = policy.Lead
				})
				m := newParcel()
				r.Take(announced(planned, event.Pending, 0), 1, m)
				m.want(t, "done")
				time.Sleep(5 * time.Minute)
				c.wantCordoned(true, 1, "before the reboot")
				if row.between != nil {
					r = row.between(c, r, s)
				}
				c.reboot("boot-2")
				time.Sleep(time.Minute)
				c.wantCordoned(!row.lifted, 1, "a minute after the reboot")
				if told := r.ear.whats("a"); row.lifted && (len(told) == 0 || told[len(told)-1] != state.Done || count(told, state.Done) > 2) {
					t.Errorf("what was told is %v", told)
				}
				c.add(podOn("a", "two"))
				r.stop()
				c.run(within(s))
				time.Sleep(20 * time.Minute)
				c.wantCordoned(!row.lifted, 1, "a while later, and after a restart")
			})
		})
	}
}

func TestANodeIsOpenedAfterItsRebootOnlyWhenItsKubeletSaysThatItIsReady(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		m := newParcel()
		c.run(within(nil)).Take(announced(at("system-reboot", 5*time.Minute), event.Pending, 0), 1, m)
		m.want(t, "done")
		c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
		time.Sleep(time.Minute)
		c.change("a", func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" })
		time.Sleep(20 * time.Minute)
		c.wantCordoned(true, 1, "while it is not Ready")
		c.change("a", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue })
		time.Sleep(time.Minute)
		c.wantCordoned(false, 1, "when it is Ready")
	})
}

// checking does something about failed status checks.
func checking(s *schedule, action policy.Action) func(*fleet.Options) {
	return func(o *fleet.Options) {
		within(s)(o)
		o.Impaired = 5 * time.Minute
		o.Policy[event.StatusCheck] = policy.Rule{Action: action, Budget: 15 * time.Minute}
	}
}

func TestAStatusCheckThatFailsForLongEnoughIsTold(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		action  policy.Action
		timed   bool // EC2 tells since when
		passing time.Duration
		told    int
		drained bool
	}{
		"it is only to be told":          {action: policy.Notify, timed: true, passing: 40 * time.Minute, told: 1},
		"EC2 does not tell since when":   {action: policy.Notify, passing: 40 * time.Minute, told: 1},
		"it passes again soon":           {action: policy.Notify, timed: true, passing: 4 * time.Minute},
		"it is to be ignored":            {action: policy.Ignore, timed: true, passing: 40 * time.Minute},
		"its node is to be drained":      {action: policy.Drain, timed: true, passing: 40 * time.Minute, told: 1, drained: true},
		"its node is drained, since now": {action: policy.Drain, passing: 40 * time.Minute, told: 1, drained: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				s, is := &schedule{}, ec2.Status{Impaired: "system"}
				r := c.run(checking(s, row.action))
				if row.timed {
					is.Since = time.Now()
				}
				s.tell(instance, is)
				time.Sleep(4 * time.Minute)
				if told := r.ear.whats("a"); len(told) > 0 {
					t.Errorf("after four minutes was told %v", told)
				}
				time.Sleep(row.passing - 4*time.Minute)
				s.tell(instance, ec2.Status{})
				evicted := 0
				if row.drained {
					evicted = 1
				}
				time.Sleep(5 * time.Minute)
				c.wantCordoned(row.drained, evicted, "as it passes")
				if told := r.ear.whats("a"); count(told, state.Announced) != row.told {
					t.Errorf("what was told is %v", told)
				}
				time.Sleep(20 * time.Minute)
				c.wantCordoned(false, evicted, "long after it passes")
				if note := c.node("a").Annotations[fleet.NotesAnnotation]; note != "" {
					t.Errorf("what is noted is %s", note)
				}
				if told := r.ear.whats("a"); !row.drained && count(told, state.ClosedWith) != row.told {
					t.Errorf("what was told is %v", told)
				}
			})
		})
	}
}

// The node is closed for both, and one ends.
func TestANodeStaysClosedForWhatStillStands(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		stop, retirement := at("instance-stop", 90*time.Minute), at("instance-retirement", 100*time.Minute)
		retirement.ID = "instance-event-2"
		s := (&schedule{}).say(instance, stop, retirement)
		c.run(within(s))
		time.Sleep(time.Minute)
		c.wantCordoned(true, 1, "in both windows")
		for _, left := range [][]ec2.Planned{{canceled(stop), retirement}, {canceled(stop), canceled(retirement)}} {
			s.say(instance, left...)
			open := left[1].Canceled
			for range 60 {
				time.Sleep(2 * time.Second)
				if synctest.Wait(); !open && !c.node("a").Spec.Unschedulable {
					t.Fatal("it takes pods in between")
				}
			}
			c.wantCordoned(!open, 1, "after one was called off")
		}
	})
}

// A termination is not taken back; its message is gone when the maintenance is called off.
func TestANodeThatIsClosedForMoreThanMaintenanceStaysClosed(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]bool{"it is called off during the other drain": true, "it is called off after it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				stop := at("instance-stop", 100*time.Minute)
				s := (&schedule{}).say(instance, stop)
				r := c.run(within(s))
				time.Sleep(time.Minute)
				c.wantCordoned(true, 1, "in its window")
				began := time.Now()
				c.before("evict", func(int) error {
					if time.Since(began) < 10*time.Minute {
						return apierrors.NewTooManyRequests("busy", 1)
					}
					return nil
				})
				c.add(podOn("a", "two"))
				m := newParcel()
				r.Take(timeless(instance), 1, m)
				time.Sleep(time.Minute)
				if during {
					s.say(instance, canceled(stop))
				}
				time.Sleep(15 * time.Minute)
				m.want(t, "done")
				s.say(instance, canceled(stop))
				time.Sleep(10 * time.Minute)
				c.wantCordoned(true, c.times("evict"), "after the maintenance was called off")
			})
		})
	}
}

// Both see that the machine is back.
func TestANodeThatSeveralProcessesOpenAfterItsRebootIsNotDrainedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		s := (&schedule{}).say(instance, at("system-reboot", 5*time.Minute))
		c.run(within(s))
		c.run(within(s))
		time.Sleep(4 * time.Minute)
		c.wantCordoned(true, 1, "before the reboot")
		time.Sleep(time.Minute)
		c.reboot("boot-2")
		c.add(podOn("a", "two"))
		time.Sleep(10 * time.Minute)
		c.wantCordoned(false, 1, "after the reboot")
	})
}

// The other one has told of it, and is no more when its time comes.
func TestMaintenanceIsDrainedForByWhoeverIsLeftWhenItsTimeComes(t *testing.T) {
	t.Parallel()
	for name, which := range map[string]int{"the first is left": 1, "the second is left": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				c.before("claim", func(int) error {
					time.Sleep(time.Second) // Both are at it.
					return nil
				})
				s := &schedule{}
				rigs := []*rig{c.run(within(s)), c.run(within(s))}
				s.say(instance, at("system-reboot", 40*time.Minute))
				time.Sleep(10 * time.Minute)
				rigs[which].stop()
				time.Sleep(25 * time.Minute)
				c.wantCordoned(true, 1, "when its time has come")
			})
		})
	}
}

// Nobody but its message says of which instance it is.
func TestMaintenanceOfANodeThatDoesNotTellItsInstanceIsWaitedForByItsMessage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		n := nodeOf("a", instance, nil)
		n.Spec.ProviderID = "k3s://a"
		n.Status.NodeInfo.BootID = "boot-1"
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalDNS, Address: "a.internal"}}
		c.add(n, podOn("a", "one"))
		reboot := at("system-reboot", 70*time.Minute)
		s := (&schedule{}).say(instance, reboot)
		r := c.run(func(o *fleet.Options) {
			within(s)(o)
			o.Instances = &knowledge{
				states: map[string]string{instance: "running"}, managed: map[string]bool{instance: true}, dns: map[string]string{instance: "a.internal"},
			}
		})
		began := time.Now()
		notices := announced(reboot, event.Pending, 0)
		for range 3 {
			time.Sleep(min(r.takeOnce(t, notices, 1).after, 15*time.Minute))
		}
		r.toTheEnd(t, notices, 10)
		if took := time.Since(began); took > 70*time.Minute {
			t.Errorf("it took %s", took)
		}
		c.wantCordoned(true, 1, "when its time has come")
		time.Sleep(time.Until(reboot.NotBefore))
		c.reboot("boot-2")
		time.Sleep(time.Minute)
		c.wantCordoned(false, 1, "after the reboot")
	})
}

// AWS Health writes of it before EC2 lists it, under a name of its own.
func TestMaintenanceThatEC2ListsAfterItsMessageIsOneEvent(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		c.before("evict", func(int) error { return apierrors.NewTooManyRequests("busy", 60) })
		stop := at("instance-stop", 100*time.Minute)
		s := &schedule{}
		r := c.run(within(s))
		m := newParcel()
		r.Take(announced(stop, event.Pending, 0), 1, m)
		time.Sleep(time.Minute)
		s.say(instance, stop)
		time.Sleep(5 * time.Minute)
		if told := r.ear.whats("a"); count(told, state.Announced) != 1 || count(told, state.Begun) != 1 {
			t.Errorf("it was told of as %v", told)
		}
		if events := r.Status().Events; len(events) != 1 {
			t.Errorf("what is worked on is %+v", events)
		}
		s.say(instance, canceled(stop))
		time.Sleep(2 * time.Minute)
		m.want(t, "done")
		c.wantCordoned(false, c.times("evict"), "after it was called off")
	})
}

// Nobody knows whether it still fails.
func TestAStatusCheckCountsAsFailedOnlyForAsLongAsEC2HasSaidSo(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		timed bool
		then  func(*schedule)
	}{
		"EC2 does not answer any more":                       {true, func(s *schedule) { s.fail(errors.New("not now")) }},
		"it passes, and fails again, EC2 does not say since": {false, func(s *schedule) { s.tell(instance, ec2.Status{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, c *cluster) {
				c.booted()
				s, is := &schedule{}, ec2.Status{Impaired: "system"}
				r := c.run(checking(s, policy.Drain))
				if row.timed {
					is.Since = time.Now()
				}
				s.tell(instance, is)
				time.Sleep(2 * time.Minute)
				row.then(s)
				time.Sleep(30 * time.Minute)
				c.wantCordoned(false, 0, "half an hour later")
				s.tell(instance, is)
				time.Sleep(2 * time.Minute)
				c.wantCordoned(false, 0, "as it has failed again, or may have")
				if told := r.ear.whats("a"); len(told) > 0 {
					t.Errorf("what was told is %v", told)
				}
			})
		})
	}
}

func TestOtherRulesHoldForMaintenanceThatWaits(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.booted()
		s := (&schedule{}).say(instance, at("system-reboot", 9*time.Hour))
		r := c.run(within(s))
		time.Sleep(10 * time.Minute)
		c.wantCordoned(false, 0, "long before")
		rules := policy.Settings{event.ScheduledMaintenance: {
			Action: policy.Drain, Lead: 8*time.Hour + 30*time.Minute, Codes: map[string]policy.When{"system-reboot": policy.Lead},
		}}
		r.Use(fleet.Rules{Policy: rules})
		time.Sleep(30 * time.Minute)
		c.wantCordoned(true, 1, "when its time has come by the other rules")
	})
}
