package e2e

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// Thirty pods that want a minute each, and a budget that never yields: what the deadline allows is what they get.
func TestDeadline_GivesTheLongestGraceItAllows(t *testing.T) {
	const pods, grace = 30, 60
	for name, c := range map[string]struct {
		notice   time.Duration
		min, max int64 // of the grace that the pods are given, in seconds
	}{
		"a minute, where the notice is longer":          {75 * time.Second, grace - 5, grace},
		"what the notice leaves, where that is shorter": {40 * time.Second, 15, 38},
	} {
		t.Run(name, func(t *testing.T) {
			s := prepare(t, "")
			s.node.AddDeployment(t, "web", pods, lab.MinAvailable(pods), lab.Grace(grace*time.Second), lab.GoesAtGrace())
			s.start(t)
			s.nth.WaitStatus(t, "watching")

			deadline := time.Now().Add(c.notice)
			s.imds.SetSpot("terminate", deadline)
			s.node.WaitForPods(t, "all pods have had their signal", func(listed []*corev1.Pod) bool {
				ending := 0
				for _, pod := range listed {
					if held(pod) && pod.DeletionTimestamp != nil {
						ending++
					}
				}
				return ending == pods
			})
			for _, pod := range s.node.Pods(t) {
				if !held(&pod) {
					continue
				}
				seconds := pod.DeletionGracePeriodSeconds
				if seconds == nil || *seconds < c.min || *seconds > c.max {
					t.Errorf("pod %s ends with a grace of %v s, want %d to %d", pod.Name, seconds, c.min, c.max)
				}
				if pod.DeletionTimestamp == nil || pod.DeletionTimestamp.After(deadline) {
					t.Errorf("pod %s ends at %v, after the deadline %s", pod.Name, pod.DeletionTimestamp, deadline)
				}
			}
			s.waitDrained(t)
			s.nth.Stop(t)
			s.mustSayNothingOf(t, systemd.DrainIncomplete)
			if e := s.machine.RecordOf(t, event.SpotInterruption); e.Phase != state.Drained || e.Result.Deleted != pods {
				t.Errorf("nth remembers %s with %+v, want it drained with %d pods deleted", e.Phase, e.Result, pods)
			}
		})
	}
}

func held(pod *corev1.Pod) bool { return strings.HasPrefix(pod.Name, "web-") }

// Owners know what an image cannot: a node whose pods stay, and a pod that must run as long as it can.
func TestAnnotationsHoldNthBack(t *testing.T) {
	t.Run("on the node", func(t *testing.T) {
		s := prepare(t, "")
		s.node.Annotate(t, "nth-project.github.io/action", "cordon")
		s.start(t)
		s.imds.SetSpot("terminate", twoMinutes())
		s.node.WaitCordoned(t)
		s.nth.WaitLog(t, systemd.DrainLeft)
		s.stopAfterLooks(t)
		s.mustKeepPods(t)
	})
	t.Run("on a pod", func(t *testing.T) {
		s := prepare(t, "")
		s.node.AddPod(t, "batch", lab.Edit(func(p *corev1.PodTemplateSpec) {
			p.Annotations = map[string]string{"nth-project.github.io/evict": "never"}
		}))
		s.start(t)
		s.imds.SetSpot("terminate", twoMinutes())
		s.nth.WaitLog(t, systemd.Drained)
		s.stopAfterLooks(t)
		s.mustBeCordoned(t)
		s.mustKeep(t, "batch", 1)
	})
}
