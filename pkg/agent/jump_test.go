package agent_test

import (
	"testing"
	"time"
)

// One answer may be dated wrongly. Neither clock can be set, so that the next one says whether that was so.
func TestClock_OneAnswerThatIsDatedWronglyMovesNothing(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"3 h ahead": 3 * time.Hour, "3 h behind": -3 * time.Hour, "1970": -50 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clocked(t, 10*time.Minute, func(r *rig, clock *boottime) {
				r.node.toGuard(stuck)
				r.run()
				ev := r.spot("a", 2*time.Minute)
				r.dated(clock.ec2(), 0, ev)
				r.begins()
				for range 3 {
					r.pass(time.Second)
					r.dated(clock.ec2().Add(wrong), 0, ev)
					r.pass(time.Second)
					r.dated(clock.ec2(), 0, ev)
				}
				r.wantBegun()
			})
		})
	}
}

func TestClock_TwoAnswersThatAgreeCount(t *testing.T) {
	t.Parallel()
	clocked(t, 0, func(r *rig, clock *boottime) {
		r.node.toGuard(stuck)
		r.run()
		ev := r.stopping("a", time.Hour)
		r.dated(clock.ec2(), 0, ev)
		r.begins()
		r.dated(clock.ec2().Add(10*time.Minute), 0, ev)
		r.wantBegun()
		r.pass(time.Second)
		r.dated(clock.ec2().Add(10*time.Minute), 0, ev)
		r.wantBegun("adjust to a: drain, soft in 49m58s")
	})
}
