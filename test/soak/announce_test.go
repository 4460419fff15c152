package soak_test

import (
	"slices"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// announce has EC2 announce something.
func (l *life) announce() {
	n := &notice{}
	switch l.random.IntN(5) {
	case 0:
		n.kind, n.hard = event.SpotInterruption, true
		n.code = []string{"terminate", "terminate", "stop", "hibernate"}[l.random.IntN(4)]
		n.at = l.newTime(time.Duration(nearest+l.random.IntN(farthest-nearest+1)) * time.Second)
	case 1:
		n.kind = event.RebalanceRecommendation
		n.at = l.newTime(-time.Minute)
	case 2:
		n.kind, n.hard, n.bootID = event.ASGTermination, true, l.machine.BootID()
		n.code = []string{"Terminated", "Warmed:Terminated"}[l.random.IntN(2)]
		same := func(other *notice) bool { return other.kind == n.kind && other.code == n.code }
		if l.model.any(same) || l.spent[n.code+n.bootID] == l.round {
			return // the same again is no new one, or it is one, depending on what nth has seen in between
		}
	default:
		n.kind, n.id = event.ScheduledMaintenance, l.name("instance-event")
		n.code = maintenanceCodes[l.random.IntN(len(maintenanceCodes))]
		n.far = n.waits() && l.chance(40)
		n.at = l.window(n.far)
		if len(l.maintenance()) >= mostMaintenance {
			return
		}
	}
	n.wants, n.brief = l.wants(n)
	if n.kind == event.ASGTermination {
		for _, replaced := range l.model.of(n.kind) {
			l.spent[replaced.code+replaced.bootID] = l.round
		}
	}
	if n.kind == event.SpotInterruption && l.model.any(func(other *notice) bool { return n.like(other) && time.Now().After(other.at) }) {
		return // it would be the old one, whose time is over
	}
	n.announced = time.Now()
	l.show(n)
	l.did("events announced", "%s", n)
	l.model.announce(n)
}

// wants is what nth does about a notice by the rules that it has, and whether a cordon for it has a time to live. What was
// ignored when it was started it does not look for.
func (l *life) wants(n *notice) (want, bool) {
	if l.deaf[n.kind] {
		return ignored, false
	}
	return l.inForce.wants(n), l.inForce.brief(n)
}

var maintenanceCodes = []string{
	"instance-stop", "instance-retirement", "system-reboot", "system-reboot", "instance-reboot", "system-maintenance", "moon-phase",
}

// mostMaintenance is how many maintenance events there are at most.
const mostMaintenance = 3

// newTime returns a time that is about so far away and that no other document has, in whole seconds.
func (l *life) newTime(away time.Duration) time.Time {
	at := time.Now().Add(away).Truncate(time.Second)
	for slices.ContainsFunc(l.times, at.Equal) {
		at = at.Add(time.Second)
	}
	l.times = append(l.times, at)
	return at
}

// window returns when a maintenance window opens: so that it is acted upon within seconds, or never in this run.
func (l *life) window(far bool) time.Time {
	if far {
		return l.newTime(3 * lead)
	}
	return l.newTime(lead + spread - share + time.Duration(l.random.IntN(3))*time.Second)
}

// show has the metadata service say what a notice says.
func (l *life) show(n *notice) {
	switch n.kind {
	case event.SpotInterruption:
		l.imds.SetSpot(n.code, n.at)
	case event.RebalanceRecommendation:
		l.imds.SetRebalance(n.at)
	case event.ASGTermination:
		l.imds.SetLifecycleState(n.code)
	case event.ScheduledMaintenance:
		l.imds.AddMaintenance(imdstest.MaintenanceEvent{EventId: n.id, Code: n.code, NotBefore: n.at})
	case event.Shutdown:
	}
}

// withdraw has EC2 take a notice back, in one of the ways in which it does so.
func (l *life) withdraw(n *notice) {
	how := "it is gone"
	switch n.kind {
	case event.SpotInterruption:
		l.imds.ClearSpot()
	case event.RebalanceRecommendation:
		l.imds.ClearRebalance()
	case event.ASGTermination:
		if l.chance(50) {
			l.imds.ClearLifecycleState()
		} else {
			l.imds.SetLifecycleState("InService")
		}
	case event.ScheduledMaintenance:
		switch l.random.IntN(4) {
		case 0:
			how = "canceled, still on schedule"
			l.imds.AddMaintenance(imdstest.MaintenanceEvent{EventId: n.id, State: "canceled"})
		case 1:
			how = "completed"
			l.imds.AddMaintenance(imdstest.MaintenanceEvent{EventId: n.id, State: "completed"})
		case 2:
			how = "canceled, as its history says"
			l.imds.WithdrawMaintenance(n.id, false)
		case 3:
			l.imds.WithdrawMaintenance(n.id, true)
		}
	case event.Shutdown:
	}
	l.withdrawn(n)
	l.did("events withdrawn", "%s: %s", n, how)
}

// withdrawn takes into account that a notice is no longer there.
func (l *life) withdrawn(n *notice) {
	if n.kind == event.ASGTermination {
		l.spent[n.code+n.bootID] = l.round
	}
	l.model.withdraw(n)
}

// move has EC2 move what is waited for, from now to some other day or the other way round.
func (l *life) move(n *notice) {
	at := l.window(!n.far)
	l.imds.AddMaintenance(imdstest.MaintenanceEvent{EventId: n.id, NotBefore: at})
	l.model.move(n, at, !n.far)
	l.did("events moved", "%s", n)
}

// flicker has a notice be missing for a while.
func (l *life) flicker(n *notice) {
	switch n.kind {
	case event.SpotInterruption:
		l.imds.ClearSpot()
	case event.RebalanceRecommendation:
		l.imds.ClearRebalance()
	case event.ASGTermination:
		l.imds.ClearLifecycleState()
	case event.ScheduledMaintenance:
		l.imds.WithdrawMaintenance(n.id, true)
	case event.Shutdown:
	}
	l.pause(2 * time.Second)
	again := *n
	again.at = n.times[len(n.times)-1] // the one that its document had last
	l.show(&again)
	l.model.doubt(n)
	l.model.troubled = true
	l.did("events missing for a moment", "%s", n)
}

// maintenance returns the maintenance events that are announced.
func (l *life) maintenance() []*notice { return l.model.of(event.ScheduledMaintenance) }

// tidy takes from the maintenance lists what is over.
func (l *life) tidy() {
	var listed []imdstest.MaintenanceEvent
	for _, n := range l.maintenance() {
		listed = append(listed, imdstest.MaintenanceEvent{EventId: n.id, Code: n.code, NotBefore: n.at})
	}
	l.imds.SetMaintenance(listed...)
	l.imds.SetHistory()
	l.note("EC2 tidies its lists up")
}
