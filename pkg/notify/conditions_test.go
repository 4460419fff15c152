package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// kubelets is a condition of the kubelet's.
var kubelets = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}

// stale is a condition of ours that an earlier run has left, a minute before the bubble's beginning.
func stale() corev1.NodeCondition {
	then := metav1.NewTime(time.Date(1999, 12, 31, 23, 59, 0, 0, time.UTC))
	return corev1.NodeCondition{Type: "InterruptionPending", Status: corev1.ConditionTrue, Reason: "SpotInterruption",
		Message: "an old one", LastHeartbeatTime: then, LastTransitionTime: then}
}

// want checks status, reason and words of the condition.
func (s *stage) want(status corev1.ConditionStatus, reason string, words ...string) {
	s.t.Helper()
	c := s.cluster.condition()
	if c == nil {
		s.t.Fatalf("there is no condition, want it to be %s", status)
	}
	if c.Status != status || c.Reason != reason {
		s.t.Errorf("the condition is %s, %s; want %s, %s", c.Status, c.Reason, status, reason)
	}
	for _, w := range words {
		if !strings.Contains(c.Message, w) {
			s.t.Errorf("the message %q does not say %q", c.Message, w)
		}
	}
}

func TestTheConditionFollowsAnEventFromItsNoticeToItsEnd(t *testing.T) {
	play(t, func(t *testing.T) *cluster { return newCluster(t, kubelets) }, func(s *stage) {
		s.opts.Events = false
		s.start()
		s.cluster.wantAsked("get node")
		s.tell(announced(spot(state.Draining)))
		s.tell(step(state.Begun, "drain", spot(state.Draining)))
		s.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
		s.pass(0)
		s.want(corev1.ConditionTrue, "SpotInterruption", "terminate this spot instance at 00:02:00 UTC on 1 Jan 2000", "is being drained")
		cordoned := s.cluster.condition().LastTransitionTime

		s.pass(time.Second)
		s.tell(step(state.Done, "drain", spot(state.Drained)))
		s.pass(time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption", "the node is drained")

		closed := spot(state.Closed)
		closed.Ending = state.Withdrawn
		s.tell(step(state.Done, "uncordon", closed))
		s.pass(time.Second)
		s.want(corev1.ConditionFalse, "NothingPending")
		if since := s.cluster.condition().LastTransitionTime; !since.After(cordoned.Time) {
			t.Errorf("the condition is False since %s, and was True since %s", since, cordoned)
		}
		s.cluster.asked()
		s.pass(24 * time.Hour)
		s.cluster.wantAsked()
		if there := s.cluster.conditions[0]; there != kubelets {
			t.Errorf("the kubelet's condition became %+v", there)
		}
	})
}

func TestAConditionThatIsTrueIsRefreshedAsTheKubeletsAreAndKeepsItsTime(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Events = false
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.pass(2 * time.Second)
		first := *s.cluster.condition()
		s.cluster.asked()
		s.pass(4 * time.Minute)
		s.cluster.wantAsked()
		s.pass(2 * time.Minute)
		s.cluster.wantAsked("get node", "patch condition")
		again := *s.cluster.condition()
		if !again.LastHeartbeatTime.After(first.LastHeartbeatTime.Time) || !again.LastTransitionTime.Equal(&first.LastTransitionTime) {
			t.Errorf("first %+v, then %+v", first, again)
		}
	})
}

func TestANodeForWhichNothingWasAnnouncedBearsNoCondition(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.pass(24 * time.Hour)
		s.cluster.wantAsked("get node")
	})
}

func TestAConditionThatAnEarlierRunHasLeftIsMadeTrueToTheRecord(t *testing.T) {
	t.Run("nothing is announced any more", func(t *testing.T) {
		play(t, func(t *testing.T) *cluster { return newCluster(t, stale()) }, func(s *stage) {
			s.start()
			s.want(corev1.ConditionFalse, "NothingPending")
		})
	})
	t.Run("something else is announced", func(t *testing.T) {
		play(t, func(t *testing.T) *cluster { return newCluster(t, stale()) }, func(s *stage) {
			s.entries = []state.Entry{entry("asg", event.ASGTermination, state.Drained)}
			s.start()
			s.want(corev1.ConditionTrue, "ASGTermination", "takes this instance out of service", "is drained")
			if since := s.cluster.condition().LastTransitionTime; !since.Equal(&[]metav1.Time{stale().LastTransitionTime}[0]) {
				t.Errorf("the condition is True since %s, want %s", since, stale().LastTransitionTime)
			}
		})
	})
}

// On call, people look here whether pods still come.
func TestTheConditionSaysOfAnOpenNodeThatItIsOpen(t *testing.T) {
	opened := func(phase state.Phase) state.Entry {
		e := spot(phase)
		e.CordonedAt, e.Reopened = e.FirstSeen, true
		return e
	}
	hibernates := spot(state.Cordoned)
	hibernates.Event.Code = "hibernate"
	for name, test := range map[string]struct {
		entry state.Entry
		words string
	}{
		"somebody uncordoned it":                  {opened(state.Cordoned), "nothing more will be done (someone uncordoned the node)"},
		"somebody uncordoned it when drained":     {opened(state.Drained), "nothing more will be done (someone uncordoned the node)"},
		"somebody uncordoned it during its drain": {opened(state.Draining), "drain now (the node is being drained)"},
		"its annotation asks for that":            {hibernates, "the node is left open because of its annotation"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.entries = []state.Entry{test.entry}
				s.start()
				s.want(corev1.ConditionTrue, "SpotInterruption", test.words)
				if said := s.cluster.condition().Message; strings.Contains(said, "is cordoned") || strings.Contains(said, "is drained") {
					t.Errorf("the condition says %q", said)
				}
			})
		})
	}
}

func TestTheNearestDeadlineIsTheReasonAndAllAreTold(t *testing.T) {
	reboot := entry("m", event.ScheduledMaintenance, state.Seen)
	reboot.Event.Code, reboot.Event.Deadline = "system-reboot", time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)
	missing := entry("r", event.RebalanceRecommendation, state.Seen)
	missing.Missing = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	ignored := entry("i", event.ScheduledMaintenance, state.Seen)
	ignored.Event.Code, ignored.Event.Deadline = "system-maintenance", time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)
	cordoned := spot(state.Cordoned)
	cordoned.CordonedAt = cordoned.FirstSeen
	for name, test := range map[string]struct {
		entries []state.Entry
		reason  string
		words   []string
	}{
		"a deadline before none":         {[]state.Entry{missing, reboot}, "ScheduledMaintenance", []string{"Also: ", "no longer announced"}},
		"the nearest of two":             {[]state.Entry{reboot, cordoned}, "SpotInterruption", []string{"is cordoned", "system-reboot at"}},
		"what is ignored does not count": {[]state.Entry{ignored, missing}, "RebalanceRecommendation", nil},
		"a kind of its own":              {[]state.Entry{entry("s", event.Shutdown, state.Draining)}, "Shutdown", []string{"is shutting down"}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.entries = test.entries
				s.start()
				s.want(corev1.ConditionTrue, test.reason, test.words...)
			})
		})
	}
	t.Run("nothing but what is ignored", func(t *testing.T) {
		play(t, bare, func(s *stage) {
			s.entries = []state.Entry{ignored}
			s.start()
			if c := s.cluster.condition(); c != nil {
				t.Errorf("the condition is %+v, want none", c)
			}
		})
	})
}

func TestNothingIsWrittenBeforeTheCordonOfTheEvent(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.cluster.asked()
		s.tell(announced(spot(state.Draining)))
		s.pass(900 * time.Millisecond)
		s.tell(step(state.Begun, "drain", spot(state.Draining)))
		s.pass(3 * time.Hour)
		s.cluster.wantAsked()
		s.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
		s.pass(time.Second)
		s.cluster.wantAsked("get node", "patch condition", "create event SpotInterruption", "create event Draining")
	})
}

// The cordon has been refused, or lifted before this process began; it is known by then.
func TestADrainThatNeverCordonsOpensTheWayWithItsFirstPod(t *testing.T) {
	for _, what := range []state.TransitionKind{state.PodEvicted, state.PodDeleted, state.PodHeld, state.PodGone} {
		t.Run(string(what), func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.start()
				s.cluster.asked()
				s.tell(announced(spot(state.Draining)))
				s.tell(step(state.Begun, "drain", spot(state.Draining)))
				s.pass(time.Minute)
				s.cluster.wantAsked()
				s.tell(pod(what, "a"))
				s.pass(3 * time.Second)
				if all := s.cluster.asked(); len(all) < 3 {
					t.Errorf("asked for %q", all)
				}
			})
		})
	}
}

func TestAStepThatNeverCordonsOpensTheWayAtItsEnd(t *testing.T) {
	for what, asked := range map[state.TransitionKind]int{state.Done: 4, state.Failed: 4, state.RanOut: 4, state.CalledBack: 3} {
		t.Run(string(what), func(t *testing.T) {
			play(t, bare, func(s *stage) {
				s.start()
				s.cluster.asked()
				s.tell(announced(spot(state.Draining)))
				s.tell(step(state.Begun, "drain", spot(state.Draining)))
				s.tell(step(what, "drain", spot(state.Draining)))
				s.pass(3 * time.Second)
				if all := s.cluster.asked(); len(all) != asked {
					t.Errorf("asked for %q, want %d requests", all, asked)
				}
			})
		})
	}
}

func TestWhatIsOnlyToldIsWrittenAtOnce(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.cluster.asked()
		s.tell(announced(entry("r", event.RebalanceRecommendation, state.Seen)))
		s.pass(100 * time.Millisecond)
		s.cluster.wantAsked("get node", "patch condition", "create event RebalanceRecommendation")
	})
}

// A life is a stage that writes the lifecycle conditions, and nothing else, to an API server that remembers who writes what.
type life struct {
	*stage
	api *apitest.Server
}

func live(t *testing.T, f func(l *life)) {
	t.Helper()
	play(t, bare, func(s *stage) {
		l := &life{s, apitest.New(s.t)}
		config := &rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: l.api.RoundTripper(), UserAgent: "nth/v1.0.0"}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			s.t.Fatal(err)
		}
		s.opts.Condition, s.opts.Events, s.opts.Lifecycle, s.opts.Writer = false, false, true, "nth"
		s.opts.Identity = func(context.Context) (notify.Identity, error) {
			return notify.Identity{Client: client, Node: apitest.Node}, nil
		}
		f(l)
	})
}

// lifecycleTypes are the conditions, as they are compared.
var lifecycleTypes = []corev1.NodeConditionType{"DrainInProgress", "Drained", "MaintenancePlanned", "MaintenanceInProgress"}

// is fails unless the Node has these lifecycle conditions, each as "Drained=True DrainCompleted", and no other.
func (l *life) is(want ...string) {
	l.t.Helper()
	var got []string
	for _, of := range lifecycleTypes {
		for _, c := range l.api.CurrentNode().Status.Conditions {
			if c.Type == of {
				got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
			}
		}
	}
	if !slices.Equal(got, want) {
		l.t.Errorf("the conditions are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func (l *life) condition(of corev1.NodeConditionType) corev1.NodeCondition {
	l.t.Helper()
	conditions := l.api.CurrentNode().Status.Conditions
	i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == of })
	if i < 0 {
		l.t.Fatalf("there is no condition %s", of)
	}
	return conditions[i]
}

// writes has a manager set conditions, each as "Drained=True Reason", as kubectl and the kubelet do: by a strategic merge patch.
func (l *life) writes(manager string, conditions ...string) {
	l.t.Helper()
	var all []corev1.NodeCondition
	for _, text := range conditions {
		said, reason, _ := strings.Cut(text, " ")
		of, status, _ := strings.Cut(said, "=")
		all = append(all, corev1.NodeCondition{
			Type: corev1.NodeConditionType(of), Status: corev1.ConditionStatus(status), Reason: reason, Message: "as " + manager + " has it",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": all}})
	if err == nil {
		_, err = l.api.Client().CoreV1().Nodes().Patch(l.t.Context(), apitest.Node, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{FieldManager: manager}, "status")
	}
	if err != nil {
		l.t.Errorf("%s cannot write %v: %v", manager, conditions, err)
	}
}

// patches are those of the Node's status since it was called last.
func (l *life) patches(before int) []apitest.Request { return l.api.Requests("patch status")[before:] }

// maintenance is the entry of a maintenance an hour after the bubble's beginning.
func maintenance(phase state.Phase) state.Entry {
	e := entry("m", event.ScheduledMaintenance, phase)
	e.Event.Code, e.Event.Deadline = "system-reboot", time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)
	return e
}

// What is left of it when nothing is pending any more.
var nothingLeft = []string{
	"DrainInProgress=False NotDraining", "Drained=False NotDraining", "MaintenancePlanned=False NothingPlanned",
	"MaintenanceInProgress=False NothingInProgress",
}

func TestTheLifecycleConditionsFollowAMaintenanceFromItsNoticeToItsEnd(t *testing.T) {
	live(t, func(l *life) {
		l.start()
		l.is()
		l.tell(announced(maintenance(state.Seen)))
		l.pass(time.Second)
		l.is("MaintenancePlanned=True ScheduledMaintenance")

		before := len(l.patches(0))
		l.tell(step(state.Begun, "drain", maintenance(state.Draining)))
		l.tell(step(state.NodeCordoned, "drain", maintenance(state.Draining)))
		l.pass(time.Second)
		l.is("DrainInProgress=True DrainStarted", "Drained=False DrainStarted", "MaintenancePlanned=False NothingPlanned",
			"MaintenanceInProgress=True ScheduledMaintenance")
		if sent := l.patches(before); len(sent) != 1 {
			t.Errorf("the beginning of a drain is told by %d patches, want one", len(sent))
		}
		began := l.condition("DrainInProgress")

		before = len(l.patches(0))
		l.tell(step(state.RanOut, "drain", maintenance(state.Incomplete)))
		l.pass(time.Second)
		l.is("DrainInProgress=True DrainOutOfTime", "Drained=False DrainOutOfTime", "MaintenancePlanned=False NothingPlanned",
			"MaintenanceInProgress=True ScheduledMaintenance")
		if now := l.condition("DrainInProgress"); !now.LastTransitionTime.Equal(&began.LastTransitionTime) {
			t.Errorf("it is in progress since %s, and was since %s", now.LastTransitionTime, began.LastTransitionTime)
		}
		l.tell(step(state.Done, "drain", maintenance(state.Drained)))
		l.pass(time.Second)
		l.is("DrainInProgress=False DrainCompleted", "Drained=True DrainCompleted", "MaintenancePlanned=False NothingPlanned",
			"MaintenanceInProgress=True ScheduledMaintenance")
		if sent := l.patches(before); len(sent) != 2 {
			t.Errorf("its end is told by %d patches, want one for each news", len(sent))
		}

		closed := maintenance(state.Closed)
		closed.Ending = state.Canceled
		l.tell(step(state.Done, "uncordon", closed))
		l.pass(time.Second)
		l.is(nothingLeft...)
		asked := len(l.api.Requests())
		l.pass(24 * time.Hour)
		if more := len(l.api.Requests()) - asked; more > 1 { // when the date has come that was known last
			t.Errorf("%d requests in a day in which nothing happens", more)
		}
		if ready := l.condition(corev1.NodeReady); ready.Status != corev1.ConditionTrue {
			t.Errorf("the kubelet's condition became %+v", ready)
		}
	})
}

func TestTheLifecycleConditionsAreWhatTheRecordSays(t *testing.T) {
	drains := func(in ...string) []string {
		return append([]string{"DrainInProgress=True DrainStarted", "Drained=False DrainStarted"}, in...)
	}
	isDrained := func(in ...string) []string {
		return append([]string{"DrainInProgress=False DrainCompleted", "Drained=True DrainCompleted"}, in...)
	}
	with := func(e state.Entry, change func(*state.Entry)) state.Entry {
		change(&e)
		return e
	}
	for name, test := range map[string]struct {
		entries func() []state.Entry
		want    []string
	}{
		"nothing is known": {func() []state.Entry { return nil }, nil},
		"a recommendation has no date": {func() []state.Entry {
			return []state.Entry{entry("r", event.RebalanceRecommendation, state.Seen)}
		}, nil},
		"what is ignored does not count": {func() []state.Entry {
			return []state.Entry{with(maintenance(state.Seen), func(e *state.Entry) { e.Event.Code = "system-maintenance" })}
		}, nil},
		"a date ahead": {func() []state.Entry { return []state.Entry{maintenance(state.Seen)} }, []string{"MaintenancePlanned=True ScheduledMaintenance"}},
		"a date that is over": {func() []state.Entry {
			return []state.Entry{with(maintenance(state.Seen), func(e *state.Entry) { e.Event.Deadline = time.Now().Add(-time.Minute) })}
		}, []string{"MaintenanceInProgress=True ScheduledMaintenance"}},
		"a spot instance is drained at once": {func() []state.Entry { return []state.Entry{spot(state.Draining)} },
			drains("MaintenanceInProgress=True SpotInterruption")},
		"a termination without a date": {func() []state.Entry {
			return []state.Entry{entry("a", event.ASGTermination, state.Drained)}
		}, isDrained("MaintenanceInProgress=True ASGTermination")},
		"a system that goes to sleep": {func() []state.Entry { return []state.Entry{entry("h", event.Hibernation, state.Cordoned)} },
			[]string{"MaintenanceInProgress=True Hibernation"}},
		"drained for one, and a date ahead": {func() []state.Entry {
			return []state.Entry{maintenance(state.Seen), entry("a", event.ASGTermination, state.Drained)}
		}, isDrained("MaintenancePlanned=True ScheduledMaintenance", "MaintenanceInProgress=True ASGTermination")},
		"drained for one, and not yet for another": {func() []state.Entry {
			return []state.Entry{maintenance(state.Drained), spot(state.Draining)}
		}, drains("MaintenanceInProgress=True SpotInterruption")},
		"people want the node left alone": {func() []state.Entry {
			return []state.Entry{with(maintenance(state.Draining), func(e *state.Entry) { e.LeftAlone = true })}
		}, []string{"MaintenancePlanned=True ScheduledMaintenance"}},
		"people have opened it when it was drained": {func() []state.Entry {
			return []state.Entry{with(maintenance(state.Drained), func(e *state.Entry) { e.Reopened = true })}
		}, []string{"MaintenancePlanned=True ScheduledMaintenance"}},
		"it is put off": {func() []state.Entry { return []state.Entry{maintenance(state.Undoing)} },
			[]string{"MaintenancePlanned=True ScheduledMaintenance"}},
		"it is over, and being undone": {func() []state.Entry {
			return []state.Entry{with(maintenance(state.Undoing), func(e *state.Entry) { e.Event.State = event.Canceled })}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(l *life) {
				l.entries = test.entries()
				l.start()
				l.is(test.want...)
			})
		})
	}
}

func TestAMaintenanceBeginsAtItsDateWithoutFurtherNews(t *testing.T) {
	live(t, func(l *life) {
		l.entries = []state.Entry{maintenance(state.Seen)}
		l.start()
		l.pass(time.Hour - 20*time.Second)
		l.is("MaintenancePlanned=True ScheduledMaintenance")
		l.pass(20 * time.Second)
		l.is("MaintenancePlanned=False NothingPlanned", "MaintenanceInProgress=True ScheduledMaintenance")
	})
}

func TestLifecycleConditionsThatAnEarlierRunHasLeftAreCleared(t *testing.T) {
	live(t, func(l *life) {
		l.writes("nth", "DrainInProgress=True DrainStarted", "Drained=False DrainStarted", "MaintenanceInProgress=True SpotInterruption")
		l.start()
		l.is("DrainInProgress=False NotDraining", "Drained=False NotDraining", "MaintenanceInProgress=False NothingInProgress")
	})
}

func TestLifecycleConditionsAreWrittenOnlyWhereTheyAreWanted(t *testing.T) {
	live(t, func(l *life) {
		l.opts.Lifecycle = false
		l.entries = []state.Entry{spot(state.Draining)}
		l.start()
		l.pass(time.Hour)
		if asked := l.api.Requests(); len(asked) > 0 {
			t.Errorf("%d requests, want none", len(asked))
		}
	})
}

// Kubernetes knows no owner of these conditions, so that each writer has to mind the others.
func TestALifecycleConditionOfSomebodyElseIsNeitherChangedNorCleared(t *testing.T) {
	const inProgress = "MaintenanceInProgress=True SpotInterruption"
	for name, test := range map[string]struct {
		before, during func(l *life)
		drains, after  []string
	}{
		"kubectl drains the node": {
			before: func(l *life) {
				l.writes("kubectl", "DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted")
			},
			drains: []string{"DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted", inProgress},
			after:  []string{"DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted", "MaintenanceInProgress=False NothingInProgress"},
		},
		"kubectl has drained it": {
			before: func(l *life) {
				l.writes("kubectl", "DrainInProgress=False KubectlDrainCompleted", "Drained=True KubectlDrainCompleted")
			},
			drains: []string{"DrainInProgress=False KubectlDrainCompleted", "Drained=True KubectlDrainCompleted", inProgress},
			after:  []string{"DrainInProgress=False KubectlDrainCompleted", "Drained=True KubectlDrainCompleted", "MaintenanceInProgress=False NothingInProgress"},
		},
		"kubectl is done with it": {
			before: func(l *life) {
				l.writes("kubectl", "DrainInProgress=False KubectlUncordoned", "Drained=False KubectlUncordoned")
			},
			drains: []string{"DrainInProgress=True DrainStarted", "Drained=False KubectlUncordoned", inProgress},
			after:  []string{"DrainInProgress=False NotDraining", "Drained=False KubectlUncordoned", "MaintenanceInProgress=False NothingInProgress"},
		},
		"somebody cannot tell": {
			before: func(l *life) { l.writes("agent", "Drained=Unknown Lost", "MaintenanceInProgress=Unknown Lost") },
			drains: []string{"Drained=Unknown Lost", "MaintenanceInProgress=Unknown Lost"},
			after:  []string{"Drained=Unknown Lost", "MaintenanceInProgress=Unknown Lost"},
		},
		"whose it is has been forgotten": {
			before: func(l *life) {
				l.writes("nth", "MaintenanceInProgress=True SpotInterruption")
				l.api.ChangeNode(func(n *corev1.Node) { n.ManagedFields = nil })
			},
			drains: []string{"DrainInProgress=True DrainStarted", "Drained=False DrainStarted", inProgress},
			after:  []string{"DrainInProgress=False NotDraining", "Drained=False NotDraining", inProgress},
		},
		"nth-queue drains it": {
			before: func(l *life) {
				l.writes("nth-queue", "DrainInProgress=True DrainStarted", "Drained=False DrainStarted", "MaintenanceInProgress=True SpotInterruption")
			},
			drains: []string{"DrainInProgress=True DrainStarted", "Drained=False DrainStarted", inProgress},
			after:  []string{"DrainInProgress=True DrainStarted", "Drained=False DrainStarted", inProgress},
		},
		"kubectl begins while nth drains, and says the same": {
			during: func(l *life) {
				l.writes("kubectl", "DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted")
			},
			drains: []string{"DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted", inProgress},
			after:  []string{"DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted", "MaintenanceInProgress=False NothingInProgress"},
		},
		"people say meanwhile that it is not so": {
			during: func(l *life) { l.writes("kubectl-edit", "MaintenanceInProgress=False AdminRequested") },
			drains: []string{"DrainInProgress=True DrainStarted", "Drained=False DrainStarted", "MaintenanceInProgress=False AdminRequested"},
			after:  []string{"DrainInProgress=False NotDraining", "Drained=False NotDraining", "MaintenanceInProgress=False AdminRequested"},
		},
		"an administrator has plans": {
			before: func(l *life) { l.writes("admin", "MaintenancePlanned=True MaintenanceWindow") },
			drains: []string{"DrainInProgress=True DrainStarted", "Drained=False DrainStarted", "MaintenancePlanned=True MaintenanceWindow", inProgress},
			after: []string{"DrainInProgress=False NotDraining", "Drained=False NotDraining", "MaintenancePlanned=True MaintenanceWindow",
				"MaintenanceInProgress=False NothingInProgress"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(l *life) {
				if test.before != nil {
					test.before(l)
				}
				l.start()
				l.tell(announced(spot(state.Draining)))
				l.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
				l.pass(5 * time.Second)
				if test.during != nil {
					test.during(l)
				}
				for range 3 { // Whatever happens meanwhile.
					changed := spot(state.Draining)
					changed.Changed = l.entries[0].Changed
					l.tell(state.Transition{Kind: state.Changed, Entry: changed})
					l.pass(time.Minute)
				}
				l.is(test.drains...)
				closed := spot(state.Closed)
				closed.Ending = state.Withdrawn
				l.tell(step(state.Done, "uncordon", closed))
				l.pass(time.Minute)
				l.is(test.after...)
			})
		})
	}
}

// kubectl sets them to False when it is done, and they stay.
func TestLifecycleConditionsThatSomebodyIsDoneWithAreTakenOver(t *testing.T) {
	live(t, func(l *life) {
		l.writes("kubectl", "DrainInProgress=False KubectlUncordoned", "Drained=False KubectlUncordoned")
		l.start()
		l.tell(announced(spot(state.Draining)))
		l.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
		l.pass(5 * time.Second)
		l.is("DrainInProgress=True DrainStarted", "Drained=False KubectlUncordoned", "MaintenanceInProgress=True SpotInterruption")
		l.tell(step(state.Done, "drain", spot(state.Drained)))
		l.pass(5 * time.Second)
		l.is("DrainInProgress=False DrainCompleted", "Drained=True DrainCompleted", "MaintenanceInProgress=True SpotInterruption")
		closed := spot(state.Closed)
		closed.Ending = state.Withdrawn
		l.tell(step(state.Done, "uncordon", closed))
		l.pass(5 * time.Second)
		l.is("DrainInProgress=False NotDraining", "Drained=False NotDraining", "MaintenanceInProgress=False NothingInProgress")
	})
}

// An order holds for as long as the drain that it was given in, whatever becomes of that.
func TestAnOrderInTheMidstOfADrainStandsUntilThatIsOver(t *testing.T) {
	ordered := []string{"DrainInProgress=False AdminRequested", "Drained=False DrainStarted", "MaintenanceInProgress=False AdminRequested"}
	for name, next := range map[string]func() state.Transition{
		"it runs out of time": func() state.Transition { return step(state.RanOut, "drain", spot(state.Incomplete)) },
		"another event comes whose deadline is nearer": func() state.Transition {
			e := entry("spot-2", event.SpotInterruption, state.Draining)
			e.Event.Deadline = time.Now().Add(time.Second)
			return announced(e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			live(t, func(l *life) {
				l.start()
				draining := spot(state.Draining)
				draining.CordonedAt = time.Now()
				l.tell(announced(draining))
				l.tell(step(state.NodeCordoned, "drain", draining))
				l.pass(5 * time.Second)
				l.writes("kubectl-edit", "DrainInProgress=False AdminRequested", "MaintenanceInProgress=False AdminRequested")
				l.pass(5 * time.Second)
				h := next()
				h.Entry.CordonedAt = draining.CordonedAt
				l.tell(h)
				l.pass(time.Minute)
				l.is(ordered...)
			})
		})
	}
}

// Nobody is to see a drain that goes on and is done, even if it is somebody else who says that it is done.
func TestADrainThatIsOverIsNotInProgressWhateverSomebodyElseSaysOfTheNode(t *testing.T) {
	for _, theirs := range []string{"Drained=True AdminRequested", "Drained=Unknown Lost"} {
		t.Run(theirs, func(t *testing.T) {
			live(t, func(l *life) {
				l.start()
				l.tell(announced(spot(state.Draining)))
				l.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
				l.pass(5 * time.Second)
				l.writes("agent", theirs)
				l.tell(step(state.Done, "drain", spot(state.Drained)))
				l.pass(time.Minute)
				l.is("DrainInProgress=False DrainCompleted", theirs, "MaintenanceInProgress=True SpotInterruption")
			})
		})
	}
}

// Between the look at the Node and the write others write, too, as the kubelet does every few seconds.
func TestALifecycleConditionIsWrittenForTheNodeAsItWasSeen(t *testing.T) {
	comesBetween := func(l *life, write func()) {
		l.api.Answer("patch status", func(http.ResponseWriter, *http.Request) bool {
			write()
			return false
		})
	}
	t.Run("the kubelet's conditions stay", func(t *testing.T) {
		live(t, func(l *life) {
			l.entries = []state.Entry{spot(state.Draining)}
			comesBetween(l, func() { l.writes("kubelet", "Ready=True KubeletReady", "DiskPressure=True KubeletHasDiskPressure") })
			l.start()
			l.is("DrainInProgress=True DrainStarted", "Drained=False DrainStarted", "MaintenanceInProgress=True SpotInterruption")
			if c := l.condition("DiskPressure"); c.Status != corev1.ConditionTrue || len(l.trouble) > 0 {
				t.Errorf("the kubelet's condition became %+v; told was %q", c, l.trouble)
			}
		})
	})
	t.Run("what somebody else begins at that moment stays theirs", func(t *testing.T) {
		live(t, func(l *life) {
			l.entries = []state.Entry{spot(state.Draining)}
			comesBetween(l, func() {
				l.writes("kubectl", "DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted")
			})
			l.start()
			l.is("DrainInProgress=True KubectlDrainStarted", "Drained=False KubectlDrainStarted", "MaintenanceInProgress=True SpotInterruption")
		})
	})
	t.Run("what is cleared was not taken over at that moment", func(t *testing.T) {
		live(t, func(l *life) {
			l.entries = []state.Entry{spot(state.Drained)}
			l.start()
			comesBetween(l, func() { l.writes("admin", "Drained=True AdminRequested") })
			closed := spot(state.Closed)
			closed.Ending = state.Withdrawn
			l.tell(step(state.Done, "uncordon", closed))
			l.pass(time.Minute)
			l.is("DrainInProgress=False NotDraining", "Drained=True AdminRequested", "MaintenanceInProgress=False NothingInProgress")
		})
	})
}

func TestAKubeletThatWritesAllTheTimeAndNthLoseNothingOfEachOther(t *testing.T) {
	live(t, func(l *life) {
		ctx, stop := context.WithCancel(l.t.Context())
		wrote := make(chan int)
		go func() {
			round := 0
			for ; ctx.Err() == nil; round++ {
				l.writes("kubelet", fmt.Sprintf("Ready=True Round%d", round))
				time.Sleep(50 * time.Millisecond)
			}
			wrote <- round - 1
		}()
		l.start()
		for _, phase := range []state.Phase{state.Draining, state.Drained, state.Draining, state.Drained} {
			l.tell(step(state.Done, "drain", spot(phase)))
			l.pass(5 * time.Second)
		}
		l.is("DrainInProgress=False DrainCompleted", "Drained=True DrainCompleted", "MaintenanceInProgress=True SpotInterruption")
		stop()
		if last := <-wrote; l.condition(corev1.NodeReady).Reason != fmt.Sprintf("Round%d", last) || last < 100 {
			t.Errorf("the kubelet wrote %d times, and its condition is %+v", last, l.condition(corev1.NodeReady))
		}
	})
}

func TestWhereLifecycleConditionsAreRefusedTheOwnConditionIsKept(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Events, s.opts.Lifecycle, s.opts.Writer = false, true, "nth"
		s.start()
		s.cluster.answers("patch lifecycle", http.StatusForbidden)
		for range 3 {
			s.tell(announced(spot(state.Seen)))
			s.pass(time.Minute)
		}
		s.want(corev1.ConditionTrue, "SpotInterruption")
		if len(s.trouble) != 1 || !strings.Contains(s.trouble[0], "lifecycle conditions") {
			t.Errorf("said %q, want a sentence about the lifecycle conditions", s.trouble)
		}
	})
}
