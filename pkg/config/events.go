package config

import (
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

const day = 24 * time.Hour

// Announced has one table for each kind of event that both programs handle. Actions are ignore, notify, cordon or drain.
type Announced struct {
	SpotInterruption        Plain
	RebalanceRecommendation RebalanceRecommendation
	ScheduledMaintenance    ScheduledMaintenance
	ASGTermination          ASGTermination
}

// Events has one table for each kind of event.
type Events struct {
	Announced
	Shutdown    Shutdown
	Hibernation Plain
}

// QueueEvents has one table for each kind of event that nth-queue handles.
type QueueEvents struct {
	Announced
	ReservationEnd Plain
	StateChange    Plain
	StatusCheck    QueueStatusCheck
}

func defaultAnnounced() Announced {
	return Announced{
		SpotInterruption:        Plain{Action: "drain"},
		RebalanceRecommendation: RebalanceRecommendation{Action: "notify", CordonFor: time.Hour},
		ScheduledMaintenance: ScheduledMaintenance{
			Action: "drain", Lead: 10 * time.Minute, Window: day, Spread: 20 * time.Minute,
			Codes: map[string]string{
				"instance-stop":       "window",
				"instance-retirement": "window",
				"system-reboot":       "lead",
				"instance-reboot":     "lead",
				"system-maintenance":  "notify",
				"other":               "notify",
			},
		},
		ASGTermination: ASGTermination{Action: "drain", Budget: 15 * time.Minute, CompleteHook: true, OnIncomplete: "continue"},
	}
}

func defaultEvents() Events {
	return Events{
		Announced:   defaultAnnounced(),
		Shutdown:    Shutdown{Action: "drain", PowerKey: "nth"},
		Hibernation: Plain{Action: "drain"},
	}
}

func defaultQueueEvents() QueueEvents {
	return QueueEvents{
		Announced:      defaultAnnounced(),
		ReservationEnd: Plain{Action: "drain"},
		StateChange:    Plain{Action: "drain"},
		StatusCheck:    QueueStatusCheck{Action: "notify", After: 5 * time.Minute},
	}
}

func (c *Announced) tables(p program) []Table {
	return []Table{
		c.SpotInterruption.table(event.SpotInterruption, "EC2 reclaims a spot instance, with about two minutes' notice. One that will only be hibernated is cordoned at most."),
		c.RebalanceRecommendation.table(p), c.ScheduledMaintenance.table(p), c.ASGTermination.table(p),
	}
}

func (c *Events) tables() []Table {
	return append(c.Announced.tables(host), c.Shutdown.table(),
		c.Hibernation.table(event.Hibernation, "The machine is put to sleep, which is what EC2's hibernation is to it. What was done is undone when it wakes."))
}

func (c *QueueEvents) tables() []Table {
	return append(c.Announced.tables(queue),
		c.ReservationEnd.table(event.ReservationEnd, "The Capacity Block, or the interruptible Capacity Reservation, that the instance runs in comes to its end. Where the message names no time, the drain has ten minutes."),
		c.StateChange.table(event.StateChange, "The instance stops or terminates, for any reason. The drain has five minutes."),
		c.StatusCheck.table(),
	)
}

// tableOf returns the name of the table for a kind of event.
func tableOf(kind event.Kind) string { return "events." + string(kind) }

var (
	actions = []string{"ignore", "notify", "cordon", "drain"}
	codes   = []string{"instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other"}
	whens   = []string{"now", "lead", "window", "notify", "ignore"}
)

const spreadDoc = "Over how long the instances of a fleet begin, for codes that wait: each at a moment of its own, which follows from its instance ID, and none later than `lead` before. `0s` is all at once."

// actionSetting is the setting that every kind of event has.
func actionSetting(at *string) Setting {
	return Setting{"action", choice(at, actions...), "What to do: nothing at all, only report it, cordon, or cordon and drain."}
}

// RebalanceRecommendation is the table [events.rebalance-recommendation].
type RebalanceRecommendation struct {
	Action    string
	CordonFor time.Duration // 0 is until the recommendation is withdrawn
}

func (c *RebalanceRecommendation) table(p program) Table {
	longest := 30 * day
	if p == queue {
		longest = 12 * time.Hour
	}
	return p.table(tableOf(event.RebalanceRecommendation), "A spot instance is at elevated risk of interruption.",
		actionSetting(&c.Action),
		Setting{"cordon_for", duration(&c.CordonFor, 0, longest),
			p.either("How long a cordon lasts if no drain follows; `0s` is until the recommendation is withdrawn.",
				"How long a cordon lasts if no drain follows; `0s` is for ever.")},
	)
}

// ScheduledMaintenance is the table [events.scheduled-maintenance].
type ScheduledMaintenance struct {
	Action       string
	Lead         time.Duration
	Window       time.Duration
	Spread       time.Duration
	HardDeadline bool
	// Codes says when Action is taken for each event code of EC2, and for "other": now, lead, window, notify or ignore.
	Codes map[string]string
}

func (c *ScheduledMaintenance) table(p program) Table {
	return p.table(tableOf(event.ScheduledMaintenance), p.either("EC2 has planned a reboot, stop, retirement or maintenance.",
		"EC2 has planned a reboot, stop, retirement or maintenance, of which AWS Health writes."),
		actionSetting(&c.Action),
		Setting{"lead", duration(&c.Lead, 0, 30*day),
			p.either("How long before the maintenance begins (`NotBefore`) the action does at the latest, for codes that say `lead` or `window`.",
				"How long before the change begins the action does at the latest, for codes that say `lead` or `window`.")},
		Setting{"window", duration(&c.Window, 0, 30*day),
			p.either("How long before the maintenance begins the action does at the earliest, for codes that say `window`. It is never less than `lead` and `spread` together.",
				"How long before the change begins the action does at the earliest, for codes that say `window`. It is never less than `lead` and `spread` together. Where nth-queue may not ask EC2 for what it has scheduled, the action begins thirteen days after it was announced in any case: SQS forgets a message after fourteen.")},
		Setting{"spread", duration(&c.Spread, 0, day), spreadDoc},
		Setting{"hard_deadline", boolean(&c.HardDeadline),
			p.either("Delete pods that resist eviction in time for the window. Otherwise their disruption budgets are respected to the end.",
				"Delete pods that resist eviction in time for the change. Otherwise their disruption budgets are respected to the end.")},
		Setting{"codes", newChoiceOfEach(&c.Codes, codes, whens),
			p.either("When the action is taken for each event code: at once (`now`), `lead` before the maintenance begins, near its date (`window`), or not, with (`notify`) or without (`ignore`) a word. `other` is every code that EC2 may yet invent.",
				"When the action is taken for each event code: at once (`now`), `lead` before the change, near its date (`window`), or not, with (`notify`) or without (`ignore`) a word. `other` is every code that EC2 may yet invent.")},
	)
}

// ASGTermination is the table [events.asg-termination].
type ASGTermination struct {
	Action       string
	Budget       time.Duration
	CompleteHook bool
	Hooks        []string // nil is the only hook of the group
	OnIncomplete string   // "continue" or "abandon"
}

func (c *ASGTermination) table(p program) Table {
	return p.table(tableOf(event.ASGTermination), p.either("The Auto Scaling group has chosen the instance for termination.",
		"The Auto Scaling group terminates the instance, and waits at a lifecycle hook."),
		actionSetting(&c.Action),
		Setting{"budget", duration(&c.Budget, time.Second, 2*day),
			p.either("How long the drain may take: the announcement names no time. Heartbeats hold the machine that long, if nth may send them; otherwise keep this within the timeout of the group's lifecycle hook.",
				"How long the drain may take, from when its turn has come. Heartbeats hold the machine that long.")},
		Setting{"complete_hook", boolean(&c.CompleteHook),
			p.either("If `action` is `drain`: hold the machine by heartbeats while it lasts, and complete the group's lifecycle hook when it has ended. It needs a policy on the instance's role, see docs/lifecycle.md.",
				"If `action` is `drain`: hold the machine by heartbeats while it lasts, and complete the group's lifecycle hook when it has ended or its time is over.")},
		hooksSetting("hooks", &c.Hooks, p.either("unless it notifies somebody or is the one of an EKS managed node group.", "unless "+ofOthers)),
		Setting{"on_incomplete", choice(&c.OnIncomplete, "continue", "abandon"),
			"How the hooks are completed when the time is over and pods are left: `abandon` keeps the machine, running, where the group's instance lifecycle policy says so (TerminateHookAbandon=retain), and is `continue` elsewhere. It needs one permission more, see docs/lifecycle.md."},
	)
}

// hooksSetting is a list of lifecycle hooks to complete. If it is empty, the only hook of the group is completed, unless what is said there holds.
func hooksSetting(key string, at *[]string, unless string) Setting {
	return Setting{key, list(at, isHookName, `a list of names of lifecycle hooks, such as ["drain"]`),
		"The names of the lifecycle hooks to complete. Empty is the group's only one, " + unless}
}

// isHookName tells whether Auto Scaling accepts the name for a lifecycle hook.
func isHookName(s string) bool {
	return s != "" && len(s) <= 255 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/") == ""
}

// ofOthers says which hooks nth-queue does not take for its own.
const ofOthers = "it notifies somebody else or is one of an EKS managed node group; and those that notify the queue are completed, whatever else there is. See docs/lifecycle.md."

// Shutdown is the table [events.shutdown].
type Shutdown struct {
	Action   string
	PowerKey string // "nth" or "logind": who answers it
}

func (c *Shutdown) table() Table {
	return Table{tableOf(event.Shutdown), "The operating system goes down, for any reason.", []Setting{
		actionSetting(&c.Action),
		{"power_key", choice(&c.PowerKey, "nth", "logind"),
			"Who answers the power button, which is all that EC2 presses. `nth` drains the node, if `action` is `drain`, and has logind power the machine off then, so that the kubelet's own graceful shutdown comes after it; see docs/shutdown.md. `logind` announces a shutdown to both at once."},
	}}
}

// Plain is the table of a kind of event of which only the action can be set.
type Plain struct {
	Action string
}

func (c *Plain) table(kind event.Kind, doc string) Table {
	return Table{tableOf(kind), doc, []Setting{actionSetting(&c.Action)}}
}

// QueueStatusCheck is the table [events.status-check].
type QueueStatusCheck struct {
	Action string
	After  time.Duration
}

func (c *QueueStatusCheck) table() Table {
	return Table{tableOf(event.StatusCheck), "A status check of EC2's fails, of the instance or of the system below it. EC2 is asked for those each minute.", []Setting{
		actionSetting(&c.Action),
		{"after", duration(&c.After, 0, day),
			"How long the check must have failed. What has begun is taken back once it has passed for a quarter of an hour. A drain may take as long, and deletes no pod that resists eviction: the machine may yet recover."},
	}}
}
