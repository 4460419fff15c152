package agent_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/systemd"
)

// lost is what is logged of a look for spot notices that failed.
func lost(reason string) string {
	return "warning: cannot check for spot-interruption events: " + reason + "; nth keeps the last known state and retries"
}

func TestSource_TroubleEndsAfterTenSecondsWithout(t *testing.T) {
	bubble(t, func(r *rig) {
		r.run()
		for range 2 {
			r.hook.Reset()
			r.trouble(event.SpotInterruption, "no answer")
			r.trouble(event.SpotInterruption, "no answer")
			r.pass(time.Minute + time.Second)
			r.announce()
			r.pass(time.Second)
			r.wantSaid(systemd.SourceTrouble, lost("no answer")) // It is logged in each outage.
			r.wantSaid(systemd.SourceRecovered, "info: can check for spot-interruption events again")
		}
	})
}

// A document of which a part cannot be read gives a snapshot and trouble at each look.
func TestSource_APartlyReadableDocument(t *testing.T) {
	bubble(t, func(r *rig) {
		r.runFor(r.spot("a", 2*time.Minute))
		r.pass(time.Second - 1)
		for range 32 {
			r.source.sink.Snapshot(event.Snapshot{Kind: event.SpotInterruption})
			r.pass(2) // Not even a tick in between ends the outage.
			r.trouble(event.SpotInterruption, "entry 1 has no time")
			r.pass(time.Second - 2)
		}
		r.wantSaid(systemd.SourceTrouble, lost("entry 1 has no time"))
		r.wantSaid(systemd.SourceRecovered)
		r.wantTape("put a drained, missing", "put a undoing", "guard ended", "uncordon", "uncordon ended", "put a closed withdrawn")
	})
}

func TestSource_AStalledOneStarvesTheWatchdog(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.stopping("a", time.Hour))
		fed := func(want int) {
			t.Helper()
			before, _ := r.service.counts()
			r.pass(10 * time.Second)
			if after, _ := r.service.counts(); after-before != want {
				t.Errorf("after %s: fed %d times in ten seconds, want %d", time.Since(r.start), after-before, want)
			}
		}
		for range 2 {
			fed(10)
			r.source.stall(errors.New("neither an answer nor an error for 1m1s"))
			fed(0)
			r.source.stall(nil)
		}
		const stalled = "error: neither an answer nor an error for 1m1s; waiting for systemd's watchdog to restart nth"
		r.wantSaid(systemd.SourceTrouble, stalled, stalled)
	})
}

func TestLoop_RunsOnceASecond(t *testing.T) {
	bubble(t, func(r *rig) {
		r.node.toGuard(stuck)
		r.run()
		r.announce(r.stopping("a", time.Hour), r.rebooting("b", 3*time.Hour))
		r.announce(r.stopping("a", time.Hour)) // b is missing
		_, before := r.service.counts()
		r.pass(time.Minute)
		if beats, after := r.service.counts(); beats != 60 || after-before > 65 {
			t.Errorf("%d beats and %d turns in a minute, want about one a second", beats, after-before)
		}
	})
}

// boottime is the loop's clock, which is ahead of EC2's, and counts while the machine sleeps. The bubble's clock stops then, like
// the monotonic one, so EC2's is the bubble's and what was slept.
type boottime struct{ ahead, slept atomic.Int64 }

func (c *boottime) now() time.Time { return c.ec2().Add(time.Duration(c.ahead.Load())) }

func (c *boottime) ec2() time.Time { return time.Now().Add(time.Duration(c.slept.Load())) }

// clocked has the rig's loop run by a clock that is ahead of EC2's, with guards that do not end.
func (r *rig) clocked(ahead time.Duration) *boottime {
	clock := &boottime{}
	clock.ahead.Store(int64(ahead))
	r.cfg.Now = clock.now
	r.cfg.Policy[event.RebalanceRecommendation] = policy.Rule{Action: policy.Cordon, CordonFor: time.Hour, WithdrawnAfter: time.Minute}
	r.cfg.Policy[event.Shutdown] = policy.Rule{Action: policy.Drain, Hard: true}
	r.node.toGuard(stuck)
	r.run()
	return clock
}

// dated is a good look at one document, in an answer that EC2 has dated, which took so long.
func (r *rig) dated(date time.Time, took time.Duration, events ...event.Event) {
	r.source.sink.Snapshot(event.Snapshot{
		Kind: events[0].Kind, Events: events, Clock: date.Truncate(time.Second), Within: time.Second + took,
	})
	r.pass(0)
}

// begins are the calls that begin something on the node since it was last asked.
func (r *rig) begins() []string {
	var begun []string
	for _, call := range r.tape.take() {
		if !strings.HasPrefix(call, "put ") && !strings.HasSuffix(call, " ended") || strings.HasSuffix(call, " incomplete") {
			begun = append(begun, call)
		}
	}
	return begun
}

func (r *rig) wantBegun(want ...string) {
	r.t.Helper()
	r.compare("what was begun", r.begins(), want)
}

func TestClock_DocumentsAreReadByEC2s(t *testing.T) {
	each(t, map[string]struct {
		ahead, took, want time.Duration // want differs from two minutes by what cannot be known
	}{
		"right":                            {want: 2 * time.Minute},
		"right, and an answer takes 4 s":   {took: 4 * time.Second, want: 2 * time.Minute},
		"a little more":                    {ahead: 3*time.Second + 1, want: 2*time.Minute - time.Second},
		"2 s behind, which is not known":   {ahead: -2 * time.Second, want: 2*time.Minute + 2*time.Second},
		"a little more behind":             {ahead: -2*time.Second - 1, want: 2*time.Minute - time.Second},
		"10 min. behind, and it takes 4 s": {ahead: -10 * time.Minute, took: 4 * time.Second, want: 2*time.Minute - 5*time.Second},
		"1970, as without a battery":       {ahead: -30 * 365 * 24 * time.Hour, want: 2*time.Minute - time.Second},
	}, func(r *rig, row struct{ ahead, took, want time.Duration }) {
		clock := r.clocked(row.ahead)
		r.dated(clock.ec2(), row.took, r.spot("a", 2*time.Minute))
		r.wantBegun("guard for a: drain, hard in " + row.want.String())
	})
}

// What the machine announces itself, and the end of a hook, is the time that is left, by no clock.
func TestClock_TimeLeftIsMovedByNothing(t *testing.T) {
	each(t, map[string]event.Event{
		"a shutdown": {ID: "a", Kind: event.Shutdown, State: event.Pending},
		"a hook":     terminated("a"),
	}, func(r *rig, ev event.Event) {
		clock := r.clocked(10 * time.Minute)
		ev.Deadline = time.Now().Add(4 * time.Minute)
		r.dated(clock.ec2(), 0, ev)
		if e := r.entry("a"); e.Event.Deadline.Sub(clock.now()) != 4*time.Minute {
			r.t.Errorf("its deadline is %s, and now is %s", e.Event.Deadline, clock.now())
		}
		r.begins()
		r.pass(time.Minute)
		if step := r.board.last().Step; !step.Began.Equal(clock.now().Add(-time.Minute)) {
			r.t.Errorf("what began a minute ago began at %s, and now is %s", step.Began, clock.now())
		}
		r.dated(clock.ec2(), 0, ev)
		r.wantBegun()
		known := r.entry("a").Event.Deadline
		for later, moved := range map[time.Duration]bool{2*time.Second - 1: false, 2 * time.Second: true} {
			next := ev
			next.Deadline = ev.Deadline.Add(later)
			r.dated(clock.ec2(), 0, next)
			if got := r.entry("a").Event.Deadline; got.Equal(known) == moved {
				r.t.Errorf("announced %s later, it has moved by %s", later, got.Sub(known))
			}
			r.dated(clock.ec2(), 0, ev)
		}
	})
}

// incredible is a time that no record can hold; pkg/event has the rule.
var incredible = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

func TestIdentity_TroubleIsLoggedOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.ident.name, r.ident.err = "", errors.New("there is no kubeconfig")
		r.run()
		for _, step := range []identity{
			{err: errors.New("there is no kubeconfig")}, {err: errors.New("expired at 10:00:01")}, {err: errors.New("expired at 10:00:02")},
			{name: "node-a"}, {name: "node-a"}, {name: "node-b"},
		} {
			r.ident.tell(step.name, step.err)
			r.pass(time.Second)
		}
		r.wantSaid(systemd.IdentityWaiting, "warning: cannot drain the node until the kubelet's credential is confirmed: there is no kubeconfig; retrying",
			"warning: cannot drain the node until the kubelet's credential is confirmed: expired at 10:00:01; retrying")
		r.wantSaid(systemd.IdentityFound, "info: found the kubelet's credential: this is node node-a", "info: found the kubelet's credential: this is node node-b")
	})
}

// nth-queue runs an agent for each node in one process.
func TestAgent_WithoutAServiceLogsNothingOfItself(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.Service = nil
		r.run()
		r.announce(r.spot("a", 2*time.Minute))
		r.wantTape("put a seen", "put a draining", "guard for a: drain, hard in 2m0s", "put a drained")
		r.pass(3 * time.Second)
		if sentence := r.board.last().Sentence; sentence != "node node-a is drained for spot-interruption" {
			t.Errorf("the board says %q", sentence)
		}
		r.end()
		for _, id := range []string{systemd.Started, systemd.Stopping, systemd.IdentityFound} {
			r.wantSaid(id)
		}
	})
}

// What keeps an agent for a node has to know when it is not needed for a while.
func TestAgent_SaysForWhichEventsItRests(t *testing.T) {
	bubble(t, func(r *rig) {
		rested := make(chan map[string]time.Time, 1)
		rested <- map[string]time.Time{}
		r.cfg.Rested = func(ev event.Event, again time.Time) {
			all := <-rested
			all[ev.ID] = again
			rested <- all
		}
		want := func(id string, rests bool, until time.Time) {
			t.Helper()
			all := <-rested
			defer func() { rested <- all }()
			if got, ok := all[id]; ok != rests || !got.Equal(until) {
				t.Errorf("%s rests: %t, until %s; want %t, %s", id, ok, got, rests, until)
			}
		}
		r.node.toGuard(after(time.Minute))
		r.run()
		r.announce(r.spot("a", 2*time.Minute), r.rebooting("b", time.Hour))
		r.pass(59 * time.Second)
		want("b", true, r.in(50*time.Minute))
		want("a", false, time.Time{}) // The node is being drained for it.
		r.pass(time.Second)
		want("a", true, time.Time{})
	})
}
