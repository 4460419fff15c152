package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// reboots has the rig's policy reboot the machine for a system-reboot, which then takes place as answer says. The tape shows what is on record then.
func reboots(r *rig, answer error) {
	r.rule(event.ScheduledMaintenance, func(rule *policy.Rule) {
		rule.Reboot = []string{"system-reboot"}
		rule.Codes = map[string]policy.When{"system-reboot": policy.Now}
	})
	r.cfg.Reboot = func(context.Context) error {
		onRecord := "not on record"
		if e := r.record.Entries()[0]; !e.RebootAt.IsZero() {
			onRecord = "on record as " + string(e.Phase)
		}
		r.tape.add("reboot, %s", onRecord)
		return answer
	}
}

func TestReboot_IsRecordedAndRequestedOnce(t *testing.T) {
	const rebooting = "warning: rebooting the machine now, before the scheduled time: EC2 has scheduled system-reboot at 01:00:00 UTC on 1 Jan 2000"
	type row struct {
		answer error
		said   []string
	}
	each(t, map[string]row{
		"it takes place":    {nil, []string{rebooting}},
		"logind refuses it": {errors.New("refused"), []string{rebooting, "warning: cannot carry out the maintenance early: refused; it is left to EC2"}},
	}, func(r *rig, row row) {
		reboots(r, row.answer)
		r.run()
		r.announce(r.rebooting("a", time.Hour))
		r.wantTape("put a seen", "put a draining", "guard for a: drain, soft in 1h0m0s", "put a drained", "reboot, on record as drained")
		r.look(r.rebooting("a", time.Hour))
		r.wantSaid(systemd.Rebooting, row.said...)
		r.restart()
		r.announce(r.rebooting("a", time.Hour))
		r.wantTape("guard for a: drain, soft in 59m50s")
		r.rule(event.ScheduledMaintenance, cordons)
		r.restart() // The machine may still go down, so the node stays closed although the event is no reason for that now.
		r.announce(r.rebooting("a", time.Hour))
		r.wantTape("put a cordoning", "guard for a: cordon", "put a cordoned")
	})
}

func TestReboot_AfterABootWhoseClockWasAhead(t *testing.T) {
	bubble(t, func(r *rig) {
		reboots(r, nil)
		e := r.drained(r.rebooting("a", time.Hour), state.Drained, "boot-1")
		e.ActedAt = r.start.Add(time.Minute)
		r.record.entries = []state.Entry{e}
		r.run()
		r.announce(r.rebooting("a", time.Hour))
		r.wantTape("guard for a: drain, soft in 1h0m0s", "reboot, on record as drained")
		r.pass(5 * time.Minute)
		r.wantTape()
	})
}

func TestReboot_IsNotRequested(t *testing.T) {
	reopen := func(r *rig) {
		r.node.toGuard(func(ctx context.Context, g *guard) {
			g.close()
			g.drain()
			if rest(ctx, time.Second) {
				g.open()
			}
		})
	}
	type row struct {
		before func(r *rig)
		said   []string
	}
	each(t, map[string]row{
		"if the disk is full": {
			func(r *rig) { r.record.err = errors.New("full") },
			[]string{"warning: cannot carry out the maintenance early: cannot record it first: full; it is left to EC2"},
		},
		"while the disk hangs": {func(r *rig) { r.record.hangs = time.Hour }, nil},
		"if an operator uncordons the node before it is on record": {func(r *rig) { r.record.hangs = 5 * time.Second; reopen(r) }, nil},
		"if another event that is due comes before it is on record": {func(r *rig) {
			r.record.hangs = 5 * time.Second
			time.AfterFunc(time.Second, func() { r.announce(r.rebooting("a", time.Hour), r.rebooting("b", time.Hour)) })
		}, nil},
		"in a dry run": {
			func(r *rig) { r.cfg.DryRun = true },
			[]string{"warning: dry run: would be rebooting the machine now, before the scheduled time: EC2 has scheduled system-reboot at 01:00:00 UTC on 1 Jan 2000"},
		},
	}, func(r *rig, row row) {
		reboots(r, nil)
		row.before(r)
		r.run()
		r.look(r.rebooting("a", time.Hour))
		r.pass(5 * time.Second)
		if slices.Contains(r.tape.take(), "reboot, on record as drained") {
			r.t.Error("the machine is rebooted")
		}
		r.wantSaid(systemd.Rebooting, row.said...)
		r.endWithin()
	})
}

// EC2's list or the record may be lost at the reboot.
func TestReboot_AfterIt(t *testing.T) {
	noneFollows := func(r *rig) {
		r.run()
		r.announce(r.rebooting("a", time.Hour))
		r.pass(time.Minute)
		r.wantSaid(systemd.Rebooting)
	}
	each(t, map[string]func(r *rig){
		"the first look fails": func(r *rig) {
			e := r.drained(r.rebooting("a", time.Hour), state.Drained, "boot-0")
			e.RebootAt = r.start
			r.record.entries = []state.Entry{e}
			r.node.toUncordon(func(ctx context.Context) (drain.UncordonResult, error) {
				if !rest(ctx, time.Minute) {
					return "", ctx.Err()
				}
				return drain.UncordonLifted, nil
			})
			r.run()
			r.trouble(event.ScheduledMaintenance, "no route to host")
			r.pass(2 * time.Second)
			r.announce()
			r.pass(2 * time.Minute)
			r.wantSaid(systemd.Uncordoned, "info: uncordoned the node: the machine is back after its reboot")
		},
		"the record is lost, and the Node cannot be read yet": func(r *rig) {
			r.node.toClaim(func(ctx context.Context) (drain.Claim, bool, error) {
				if time.Since(r.start) < time.Second {
					return unanswered(ctx)
				}
				return *r.claim(event.ScheduledMaintenance, "boot-0"), true, nil
			})
			noneFollows(r)
		},
		"the last entry of an event that is announced again is lost": func(r *rig) {
			e := r.drained(r.rebooting("a", time.Hour), state.Closed, "boot-1")
			e.RebootAt = r.start
			r.record.entries = []state.Entry{e}
			r.node.toClaim(claims(r.claim(event.ScheduledMaintenance, "boot-1")))
			noneFollows(r)
		},
		"the record is lost": func(r *rig) {
			r.node.toClaim(claims(r.claim(event.ScheduledMaintenance, "boot-0")))
			noneFollows(r)
		},
	}, func(r *rig, then func(r *rig)) {
		reboots(r, nil)
		then(r)
	})
}

// The node is opened, and EC2's own reboot is drained for at its time.
func TestReboot_LeavesTheRestToEC2(t *testing.T) {
	bubble(t, func(r *rig) {
		reboots(r, nil)
		r.rule(event.ScheduledMaintenance, func(rule *policy.Rule) { rule.Codes["system-reboot"] = policy.Lead })
		e := r.drained(r.rebooting("a", time.Hour), state.Drained, "boot-0")
		e.RebootAt = r.start
		r.record.entries = []state.Entry{e}
		r.run()
		r.wantTape()
		r.announce(r.rebooting("a", time.Hour))
		r.wantTape("put a undoing", "uncordon", "uncordon ended", "put a seen")
		r.wantSaid(systemd.Uncordoned, "info: uncordoned the node: nth's early reboot of the machine was tried, but EC2 still lists the maintenance; nth will drain the node again before the scheduled time")
		r.pass(50 * time.Minute)
		r.wantTape("put a draining", "guard for a: drain, soft in 10m0s", "put a drained")
	})
}
