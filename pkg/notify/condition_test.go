package notify_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/state"
)

// kubelets is a condition of the kubelet's.
var kubelets = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}

// stale is a condition of ours that an earlier run has left, a minute before the bubble's beginning.
func stale() corev1.NodeCondition {
	then := metav1.NewTime(time.Date(1999, 12, 31, 23, 59, 0, 0, time.UTC))
	return corev1.NodeCondition{Type: "InterruptionPending", Status: corev1.ConditionTrue, Reason: "SpotInterruption",
		Message: "nth: an old one", LastHeartbeatTime: then, LastTransitionTime: then}
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

func TestCondition_FollowsAnEventFromItsNoticeToItsEnd(t *testing.T) {
	play(t, func(t *testing.T) *cluster { return newCluster(t, kubelets) }, func(s *stage) {
		s.opts.Events = false
		s.start()
		s.cluster.wantAsked("get node")
		s.tell(announced(spot(state.Draining)))
		s.tell(step(state.Begun, "drain", spot(state.Draining)))
		s.tell(step(state.NodeCordoned, "drain", spot(state.Draining)))
		s.pass(time.Second)
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
		if c := s.cluster.conditions[0]; c != kubelets {
			t.Errorf("the kubelet's condition became %+v", c)
		}
	})
}

// An earlier run may have left a condition. Where nothing was ever announced, the Node has none.
func TestCondition_FollowsTheRecordAtAStart(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.pass(24 * time.Hour)
		s.cluster.wantAsked("get node")
	})
	play(t, func(t *testing.T) *cluster { return newCluster(t, stale()) }, func(s *stage) {
		s.start()
		s.want(corev1.ConditionFalse, "NothingPending")
	})
	play(t, func(t *testing.T) *cluster { return newCluster(t, stale()) }, func(s *stage) {
		s.entries = []state.Entry{entry("asg", event.ASGTermination, state.Drained)}
		s.start()
		s.want(corev1.ConditionTrue, "ASGTermination", "takes this instance out of service", "is drained")
		if since := s.cluster.condition().LastTransitionTime; !since.Equal(&[]metav1.Time{stale().LastTransitionTime}[0]) {
			t.Errorf("the condition is True since %s, want %s", since, stale().LastTransitionTime)
		}
	})
}

// The nearest deadline comes first. On call, operators look here whether pods still come.
func TestCondition_SaysWhatStands(t *testing.T) {
	reboot := entry("m", event.ScheduledMaintenance, state.Seen)
	reboot.Event.Code, reboot.Event.Deadline = "system-reboot", time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)
	missing := entry("r", event.RebalanceRecommendation, state.Seen)
	missing.Missing = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	ignored := entry("i", event.ScheduledMaintenance, state.Seen)
	ignored.Event.Code, ignored.Event.Deadline = "system-maintenance", time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)
	cordoned := spot(state.Cordoned)
	cordoned.CordonedAt = cordoned.FirstSeen
	opened := func(phase state.Phase) state.Entry {
		e := spot(phase)
		e.CordonedAt, e.ReleasedAt = e.FirstSeen, e.FirstSeen
		return e
	}
	left := spot(state.Draining)
	left.LeftAlone = true
	const isOpen = "nothing more will be done (someone uncordoned the node)"
	type row struct {
		entries []state.Entry
		reason  string // "" is no condition
		words   []string
		open    bool
	}
	each(t, map[string]row{
		"a deadline before none":         {[]state.Entry{missing, reboot}, "ScheduledMaintenance", []string{"Also: ", "no longer announced"}, false},
		"the nearest of two":             {[]state.Entry{reboot, cordoned}, "SpotInterruption", []string{"is cordoned", "system-reboot at"}, false},
		"what is ignored does not count": {[]state.Entry{ignored, missing}, "RebalanceRecommendation", nil, false},
		"nothing but what is ignored":    {[]state.Entry{ignored}, "", nil, false},
		"a kind of its own":              {[]state.Entry{entry("s", event.Shutdown, state.Draining)}, "Shutdown", []string{"is shutting down"}, false},
		"uncordoned":                     {[]state.Entry{opened(state.Cordoned)}, "SpotInterruption", []string{isOpen}, true},
		"uncordoned when drained":        {[]state.Entry{opened(state.Drained)}, "SpotInterruption", []string{isOpen}, true},
		"uncordoned during its drain":    {[]state.Entry{opened(state.Draining)}, "SpotInterruption", []string{"drain now (the node is being drained)"}, true},
		"opted out":                      {[]state.Entry{left}, "SpotInterruption", []string{"the node is left alone because of its annotation"}, true},
	}, func(s *stage, row row) {
		s.entries = row.entries
		s.start()
		c := s.cluster.condition()
		if row.reason == "" {
			if c != nil {
				s.t.Errorf("the condition is %+v, want none", c)
			}
			return
		}
		s.want(corev1.ConditionTrue, row.reason, row.words...)
		if row.open && (strings.Contains(c.Message, "is cordoned") || strings.Contains(c.Message, "is drained")) {
			s.t.Errorf("the condition says %q", c.Message)
		}
	})
}

// The API server carries a write out whose answer is lost, and then all is as it was before that.
func TestCondition_IsWrittenAgainAfterALostAnswer(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Events, s.opts.Brief = false, true
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.pass(2 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.cluster.mu.Lock()
		s.cluster.answer = func(what string) int {
			if what != "patch condition" {
				return 0
			}
			s.cluster.conditions[0].Status, s.cluster.conditions[0].Reason = corev1.ConditionFalse, "NothingPending"
			return 500
		}
		s.cluster.mu.Unlock()
		s.tell(step(state.ClosedWith, "", spot(state.Closed)))
		s.pass(time.Second)
		s.cluster.answers("", 0)
		s.tell(announced(spot(state.Seen)))
		s.pass(5 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
	})
}

// A storm of interruptions must not cost a read for each node. The only read is that of the start: the watch may not show an earlier write, so
// it does not prove that nothing is to be written.
func TestCondition_OfAWatchedNodeIsWrittenUnread(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Events = false
		s.watched = func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}} }
		s.start()
		s.node = s.kubernetes.Node(nodeName, s.identity, s.record)
		s.tell(announced(spot(state.Seen)))
		s.pass(2 * time.Second)
		s.tell(announced(entry("r", event.RebalanceRecommendation, state.Seen)))
		s.pass(2 * time.Second)
		s.cluster.wantAsked("get node", "patch condition", "patch condition")
	})
}

// Evictions that always want every place, such as those that a budget refuses, must not keep what is announced from the Node.
func TestCondition_WaitsForDrainsOnlyForAWhile(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Events, s.opts.Gate = false, kube.NewGate(0)
		s.start()
		s.tell(announced(spot(state.Seen)))
		s.pass(5 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
	})
}

// nth-queue has a listener for each drain of a node. What the first one wrote is not in the watch yet when the second one begins.
func TestCondition_OfAnEarlierListenerIsRead(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Events = false
		s.watched = func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}} }
		s.start()
		s.tell(announced(spot(state.Drained)))
		s.pass(6 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		closed := spot(state.Closed)
		s.node = s.kubernetes.Node(nodeName, s.identity, func() []state.Entry { return []state.Entry{closed} })
		s.node.OnTransition(step(state.Done, "uncordon", closed))
		s.pass(time.Hour)
		s.want(corev1.ConditionFalse, "NothingPending")
	})
}

// wantLabels compares the Node's labels: the kind, and the time of the maintenance. "" is none.
func (s *stage) wantLabels(kind, notBefore string) {
	s.t.Helper()
	s.cluster.mu.Lock()
	got := maps.Clone(s.cluster.labels)
	s.cluster.mu.Unlock()
	if got[notify.KindLabel] != kind || got[notify.MaintenanceLabel] != notBefore || len(got) != len(strings.Fields(kind+" "+notBefore)) {
		s.t.Errorf("the labels are %q, want %q and %q", got, kind, notBefore)
	}
}

// over closes all entries.
func (s *stage) over() {
	s.mu.Lock()
	entries := slices.Clone(s.entries)
	s.mu.Unlock()
	for _, e := range entries {
		e.Phase, e.Ending = state.Closed, state.Withdrawn
		s.tell(state.Transition{Kind: state.ClosedWith, Entry: e})
	}
	s.pass(10 * time.Second)
}

func TestLabels_FollowTheStandingEvents(t *testing.T) {
	maintenance := func(id, code string, at time.Time) state.Entry {
		e := entry(id, event.ScheduledMaintenance, state.Seen)
		e.Event.Code, e.Event.Deadline = code, at
		return e
	}
	tomorrow := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)
	first, second := maintenance("m1", "system-reboot", tomorrow), maintenance("m2", "system-reboot", tomorrow.Add(time.Hour))
	type row struct {
		entries         []state.Entry
		off, dry, brief bool
		kind, notBefore string
	}
	each(t, map[string]row{
		"a spot interruption":      {entries: []state.Entry{spot(state.Draining)}, kind: "spot-interruption"},
		"a maintenance":            {entries: []state.Entry{first}, kind: "scheduled-maintenance", notBefore: "946771200"},
		"the earlier of two":       {entries: []state.Entry{second, first}, kind: "scheduled-maintenance", notBefore: "946771200"},
		"two kinds":                {entries: []state.Entry{first, spot(state.Seen)}, kind: "spot-interruption", notBefore: "946771200"},
		"in nth-queue":             {entries: []state.Entry{first, spot(state.Seen)}, brief: true, kind: "spot-interruption", notBefore: "946771200"},
		"no date":                  {entries: []state.Entry{maintenance("m", "system-reboot", time.Time{})}, kind: "scheduled-maintenance"},
		"a date before 1970":       {entries: []state.Entry{maintenance("m", "system-reboot", time.Unix(-5, 0))}, kind: "scheduled-maintenance", notBefore: "0"},
		"what is ignored":          {entries: []state.Entry{maintenance("m", "system-maintenance", tomorrow)}},
		"what an operator asks of": {entries: []state.Entry{entry("manual", event.Manual, state.Draining)}},
		"without the setting":      {entries: []state.Entry{first}, off: true},
		"in a dry run":             {entries: []state.Entry{first}, dry: true},
	}, func(s *stage, row row) {
		beating(s)
		s.opts.Labels, s.opts.DryRun, s.opts.Brief = !row.off, row.dry, row.brief
		s.start()
		s.wantLabels("", "")
		for _, e := range row.entries {
			s.tell(announced(e))
		}
		s.pass(10 * time.Second)
		s.wantLabels(row.kind, row.notBefore)
		s.end()
		s.start() // after a crash, too, with what is on the Node and in the record
		s.wantLabels(row.kind, row.notBefore)
		s.over()
		s.wantLabels("", "")
	})
}

// beating lets a stage have a heartbeat every five minutes, as long as what it returns is true.
func beating(s *stage) *atomic.Bool {
	alive := &atomic.Bool{}
	alive.Store(true)
	s.opts.Events, s.opts.Heartbeat, s.opts.Alive = false, 5*time.Minute, alive.Load
	return alive
}

// age is how old the heartbeat is.
func (s *stage) age() time.Duration {
	s.t.Helper()
	c := s.cluster.condition()
	if c == nil {
		s.t.Fatal("there is no condition")
	}
	return time.Since(c.LastHeartbeatTime.Time)
}

// writes counts the writes of the condition since the requests were last asked for.
func (s *stage) writes() int {
	return len(slices.DeleteFunc(s.cluster.asked(), func(what string) bool { return what != "patch condition" }))
}

func TestHeartbeat_IsRenewedThoughNothingIsAnnounced(t *testing.T) {
	play(t, func(t *testing.T) *cluster { return newCluster(t, kubelets) }, func(s *stage) {
		beating(s)
		s.start()
		s.want(corev1.ConditionFalse, "NothingPending")
		first := *s.cluster.condition()
		s.writes()
		for range 24 * 60 {
			s.pass(time.Minute)
			if age := s.age(); age > 5*time.Minute+31*time.Second {
				t.Fatalf("the heartbeat is %s old", age)
			}
		}
		if n := s.writes(); n < 24*60*10/55-2 || n > 24*60*10/45+2 {
			t.Errorf("%d writes in a day, want one about every five minutes", n)
		}
		if again := *s.cluster.condition(); again.LastTransitionTime != first.LastTransitionTime || s.cluster.conditions[0] != kubelets {
			t.Errorf("the conditions became %+v, and ours was %+v at first", s.cluster.conditions, first)
		}
	})
}

func TestHeartbeat_StopsWhileNTHDoesNotWork(t *testing.T) {
	play(t, bare, func(s *stage) { // Since the start. That does not hold up what is announced.
		beating(s).Store(false)
		s.start()
		s.pass(time.Hour)
		if c := s.cluster.condition(); c != nil {
			t.Errorf("the condition is %+v, want none", c)
		}
		s.tell(announced(spot(state.Seen)))
		s.pass(10 * time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.over()
		s.want(corev1.ConditionFalse, "NothingPending")
	})
	type row struct {
		pending, away bool
		status        int // of requests for the Node
	}
	each(t, map[string]row{
		"nothing is announced": {}, "something is announced": {pending: true}, "there is no identity": {away: true},
		"there is no Node": {status: http.StatusNotFound},
	}, func(s *stage, row row) {
		alive := beating(s)
		s.start()
		if row.pending {
			s.tell(announced(spot(state.Seen)))
			s.pass(10 * time.Second)
		}
		alive.Store(row.away || row.status != 0)
		s.away.Store(row.away)
		s.cluster.answers("get node", row.status)
		s.writes()
		s.pass(30 * time.Hour)
		if n := s.writes(); n != 0 || s.age() < 30*time.Hour {
			s.t.Errorf("the condition was written %d times, and is %s old", n, s.age())
		}
		alive.Store(true)
		s.away.Store(false)
		s.cluster.answers("get node", 0)
		s.pass(2 * time.Minute)
		if age := s.age(); age > 2*time.Minute {
			s.t.Errorf("the heartbeat is %s old after all is well for two minutes", age)
		}
	})
}

func TestHeartbeat_OfADryRunReportsNoEvent(t *testing.T) {
	play(t, func(t *testing.T) *cluster { return newCluster(t, stale()) }, func(s *stage) {
		beating(s)
		s.opts.DryRun = true
		s.start()
		s.want(corev1.ConditionFalse, "DryRun", "dry run")
		s.tell(announced(spot(state.Draining)))
		s.cordoned()
		s.pass(time.Hour)
		s.want(corev1.ConditionFalse, "DryRun")
		if age := s.age(); age > 6*time.Minute {
			t.Errorf("the heartbeat is %s old", age)
		}
		if strings.Contains(strings.Join(s.cluster.asked(), " "), "event") {
			t.Errorf("a dry run wrote Events")
		}
	})
}

// nth-queue hears of failed status checks, of which the machine knows nothing. Its condition and labels stay until the machine has an event.
func TestHeartbeat_LeavesWhatNTHQueueHasAnnounced(t *testing.T) {
	queues := stale()
	queues.Reason, queues.Message = "StatusCheckFailed", "nth-queue: EC2 says that the machine is impaired"
	type row struct {
		interval time.Duration
		dry      bool
	}
	each(t, map[string]row{
		"without a heartbeat": {0, false}, "with one": {5 * time.Minute, false}, "in a dry run": {5 * time.Minute, true},
	}, func(s *stage, row row) {
		s.cluster.conditions = []corev1.NodeCondition{queues}
		beating(s)
		s.cluster.labels[notify.KindLabel] = "status-check"
		s.opts.Heartbeat, s.opts.DryRun, s.opts.Labels = row.interval, row.dry, true
		s.start()
		s.pass(time.Hour)
		s.want(corev1.ConditionTrue, "StatusCheckFailed")
		s.wantLabels("status-check", "")
		if age := s.age(); (age < 6*time.Minute) != (row.interval > 0) {
			s.t.Errorf("the heartbeat is %s old", age)
		}
		if now := s.cluster.condition(); now.Message != queues.Message || !now.LastTransitionTime.Equal(&queues.LastTransitionTime) {
			s.t.Errorf("the condition became %+v", now)
		}
		if row.dry {
			return
		}
		s.tell(announced(spot(state.Seen)))
		s.pass(time.Second)
		s.want(corev1.ConditionTrue, "SpotInterruption")
		s.wantLabels("spot-interruption", "")
	})
}
