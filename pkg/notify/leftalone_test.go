package notify_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/record"
)

func TestANodeThatIsLeftAloneIsNowhereSaidToBeDrained(t *testing.T) {
	left := spot(record.Draining)
	left.LeftAlone = true
	t.Run("by the condition", func(t *testing.T) {
		play(t, bare, func(s *stage) {
			s.entries = []record.Entry{left}
			s.start()
			s.want(corev1.ConditionTrue, "SpotInterruption", "the node is left alone because of its annotation")
		})
	})
	t.Run("by Events", func(t *testing.T) {
		play(t, bare, func(s *stage) {
			s.opts.Condition = false
			s.start()
			s.tell(step(record.Begun, "drain", spot(record.Draining)))
			s.tell(step(record.LeftAlone, "drain", left))
			s.pass(time.Second)
			s.wantLines("Node default/node-1 Normal NodeLeftAlone: the node is left alone, as its annotation nth-project.github.io/action asks; its pods are not evicted: the reason")
		})
	})
	t.Run("by the webhook", func(t *testing.T) {
		hooked(t, func(r *hookRig) {
			for _, what := range []record.What{record.Done, record.LeftAlone, record.LeftAlone, record.Begun, record.NodeCordoned, record.Done, record.LeftAlone} {
				r.hear(what, "a", drain(record.Drained), func(h *record.Happening) { h.Entry.LeftAlone = what == record.LeftAlone })
				r.pass(time.Minute)
			}
			var texts []string
			for _, p := range r.posted() {
				texts = append(texts, p.text)
			}
			if want := []string{"a drained", "a left-alone", "a drained", "a left-alone"}; !slices.Equal(texts, want) {
				t.Errorf("posted %q, want %q", texts, want)
			}
		})
	})
}
