package notify_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// A stage is a Kubernetes that writes to a cluster, in a bubble where time is not real.
type stage struct {
	t       *testing.T
	cluster *cluster
	opts    notify.KubernetesOptions
	k       *notify.Kubernetes
	stop    context.CancelFunc
	ended   sync.WaitGroup
	trouble []string
	away    atomic.Bool // there is no identity

	mu      sync.Mutex
	entries []record.Entry
}

// rules are the rules of the stage.
var rules = policy.Settings{
	event.SpotInterruption:        {Action: policy.Drain, Hard: true},
	event.RebalanceRecommendation: {Action: policy.Notify},
	event.ScheduledMaintenance: {Action: policy.Drain, Codes: map[string]policy.When{
		"system-reboot": policy.Now, "system-maintenance": policy.Never,
	}},
	event.ASGTermination: {Action: policy.Drain},
	event.Shutdown:       {Action: policy.Drain},
	event.ReservationEnd: {Action: policy.Drain},
	event.Hibernation:    {Action: policy.Drain},
}

// play runs f on a stage; start starts its Kubernetes, and f must call it.
func play(t *testing.T, c func(*testing.T) *cluster, f func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, cluster: c(t)}
		s.opts = notify.KubernetesOptions{
			Identity: func(context.Context) (notify.Identity, error) {
				if s.away.Load() {
					return notify.Identity{}, errors.New("not joined yet")
				}
				return notify.Identity{Client: s.cluster.client(), Node: nodeName}, nil
			},
			Entries: func() []record.Entry {
				s.mu.Lock()
				defer s.mu.Unlock()
				return slices.Clone(s.entries)
			},
			Rules:     func() policy.Settings { return rules },
			Condition: true, Events: true, Source: "nth",
			Trouble: func(err error) { s.trouble = append(s.trouble, err.Error()) },
		}
		f(s)
		s.end()
	})
}

func bare(t *testing.T) *cluster { return newCluster(t) }

// start runs the Kubernetes, and waits until it looks at the node for the first time.
func (s *stage) start() {
	var ctx context.Context
	ctx, s.stop = context.WithCancel(s.t.Context())
	s.k = notify.NewKubernetes(s.opts)
	s.ended.Go(func() { s.k.Run(ctx) })
	s.pass(10 * time.Second)
}

func (s *stage) end() {
	if s.stop != nil {
		s.stop()
	}
	s.ended.Wait()
}

func (s *stage) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// tell tells what happens, with the entry as it then is in the record.
func (s *stage) tell(h record.Happening) {
	s.t.Helper()
	s.mu.Lock()
	i := slices.IndexFunc(s.entries, func(e record.Entry) bool { return e.Event.ID == h.Entry.Event.ID })
	if i >= 0 {
		s.entries[i] = h.Entry
	} else if h.Entry.Event.ID != "" {
		s.entries = append(s.entries, h.Entry)
	}
	s.mu.Unlock()
	h.At, h.Node = time.Now(), nodeName
	if h.Plan == "" {
		h.Plan = rules.Describe(h.Entry)
	}
	s.k.Hear(h)
	synctest.Wait()
}

// entry is one of an event that was announced just now.
func entry(id string, kind event.Kind, phase record.Phase) record.Entry {
	return record.Entry{
		Event: event.Event{ID: id, Kind: kind, Code: "terminate", State: event.Pending}, Phase: phase,
		FirstSeen: time.Now(), Changed: time.Now(),
	}
}

// spot is the entry of a spot interruption in two minutes after the bubble's beginning.
func spot(phase record.Phase) record.Entry {
	e := entry("spot-1", event.SpotInterruption, phase)
	e.Event.Deadline = time.Date(2000, 1, 1, 0, 2, 0, 0, time.UTC)
	return e
}

func announced(e record.Entry) record.Happening {
	return record.Happening{What: record.Announced, Entry: e}
}

// step is what happens in the course of a step.
func step(what record.What, action string, e record.Entry) record.Happening {
	return record.Happening{What: what, Entry: e, Action: action, Reason: "the reason", Took: 250 * time.Millisecond}
}

// pod is what happens to a pod in a drain.
func pod(what record.What, name string) record.Happening {
	h := step(what, "drain", spot(record.Draining))
	h.Pod, h.PodUID, h.PodLabels = "shop/"+name, "uid-"+name, map[string]string{"app": "web"}
	return h
}
