package config

import (
	"slices"
	"time"
	_ "time/tzdata" // Images and minimal hosts have no time zones of their own.

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/hours"
)

const day = 24 * time.Hour

// Announced has one table for each kind of event that both programs handle. In each table, Action is ignore, notify, cordon or drain.
type Announced struct {
	SpotInterruption        Plain
	RebalanceRecommendation RebalanceRecommendation
	ScheduledMaintenance    ScheduledMaintenance
	ASGTermination          ASGTermination
}

// Events has one table for each kind of event that nth handles.
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
	StatusCheck    Plain
}

// tables describes the tables of p for the kinds that both programs handle, with their fields in c.
func (c *Announced) tables(p program) []Table {
	return []Table{
		c.SpotInterruption.table(event.SpotInterruption, "drain", "EC2 reclaims a spot instance, with about two minutes' notice. One that will only be hibernated is cordoned at most."),
		c.RebalanceRecommendation.table(p), c.ScheduledMaintenance.table(p), c.ASGTermination.table(p),
	}
}

// tables describes nth's tables for all kinds of events, with their fields in c.
func (c *Events) tables() []Table {
	return append(c.Announced.tables(host), c.Shutdown.table(),
		c.Hibernation.table(event.Hibernation, "drain", "The machine is put to sleep, as EC2's hibernation does. The node is uncordoned when it wakes."))
}

// tables describes nth-queue's tables for all kinds of events, with their fields in c.
func (c *QueueEvents) tables() []Table {
	return append(c.Announced.tables(queue),
		c.ReservationEnd.table(event.ReservationEnd, "drain", "The instance's Capacity Block or interruptible Capacity Reservation ends. Where the message names no time, the drain has ten minutes."),
		c.StateChange.table(event.StateChange, "drain", "The instance stops or terminates, for any reason. The drain has five minutes, and the machine about three."),
		c.StatusCheck.table(event.StatusCheck, "notify", "EC2's status check of the instance or of its system has failed for five minutes. The action is undone once it has passed for a quarter of an hour. A drain may take as long, and deletes no pod: the machine may recover."),
	)
}

// tableOf returns the name of the table for a kind of event.
func tableOf(kind event.Kind) string { return "events." + string(kind) }

// The allowed values of action, and the allowed names and texts in codes: see ScheduledMaintenance.Codes.
var (
	actions = []string{"ignore", "notify", "cordon", "drain"}
	codes   = []string{"instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other"}
	whens   = []string{"now", "lead", "window", "notify", "ignore"}
	// initialCodes is the default of codes.
	initialCodes = map[string]any{
		"instance-stop": "window", "instance-retirement": "window", "system-reboot": "lead", "instance-reboot": "lead",
		"system-maintenance": "notify", "other": "notify",
	}
	// finishes are the values of finish, by program.
	finishes = map[program][]string{host: {"wait", "reboot"}, queue: {"wait", "reboot", "stop-start", "replace"}}
)

// isHours reports whether s is an element of hours.
func isHours(s string) bool {
	_, ok := hours.Parse(s)
	return ok
}

// isCode reports whether codes may have this pair: an event code, and when the action is taken for it.
func isCode(code, when string) bool {
	return slices.Contains(codes, code) && slices.Contains(whens, when)
}

// actionSetting is the setting that every kind of event has, with the default initial.
func actionSetting(at *string, initial string) Setting {
	return Setting{"action", choice(at, actions...).initially(initial), "Do nothing, only report it, cordon, or cordon and drain."}
}

// RebalanceRecommendation is the table [events.rebalance-recommendation].
type RebalanceRecommendation struct {
	Action    string
	CordonFor time.Duration // 0 is until the recommendation is withdrawn
}

// table describes the table [events.rebalance-recommendation]. Each Setting reads and shows a field of c.
func (c *RebalanceRecommendation) table(p program) Table {
	return p.table(tableOf(event.RebalanceRecommendation), "A spot instance is at elevated risk of interruption.",
		actionSetting(&c.Action, "notify"),
		Setting{"cordon_for", duration(&c.CordonFor, 0, 30*day).initially("1h"),
			p.either("How long a cordon lasts if no drain follows; `0s` is until the recommendation is withdrawn.",
				"How long a cordon lasts if no drain follows; `0s` is for ever.")},
	)
}

// ScheduledMaintenance is the table [events.scheduled-maintenance].
type ScheduledMaintenance struct {
	Action       string
	Lead         time.Duration
	Window       time.Duration
	HardDeadline bool
	Hours        []string // in the language of hours.Parse; nil is at any time
	Finish       string   // what follows the drain; nth has "wait" and "reboot" alone
	// Codes says when Action is taken for each event code of EC2, and for "other": now, lead, window, notify or ignore.
	Codes map[string]string
}

// table describes the table [events.scheduled-maintenance]. Each Setting reads and shows a field of c.
func (c *ScheduledMaintenance) table(p program) Table {
	return p.table(tableOf(event.ScheduledMaintenance), "EC2 has planned a reboot, stop, retirement or maintenance.",
		actionSetting(&c.Action, "drain"),
		Setting{"lead", duration(&c.Lead, 0, 30*day).initially("10m"),
			"How long before the maintenance (`NotBefore`) the action begins at the latest, for codes that say `lead` or `window`. The instances of a fleet begin over 20 minutes, each at a moment that follows from its instance ID."},
		Setting{"window", duration(&c.Window, 0, 30*day).initially("24h"),
			"How long before the maintenance the action begins at the earliest, for codes that say `window`; at least `lead` and 20 minutes."},
		Setting{"hours", list(&c.Hours, isHours, `a list of days, times and a time zone, such as ["Sat-Sun 02:00-05:00 Europe/Berlin"]`),
			"Hours in which the action begins, for codes that say `lead` or `window`. See docs/events.md. Empty is at any time."},
		Setting{"finish", choice(&c.Finish, finishes[p]...).initially("wait"),
			p.either("What follows the drain for a `system-reboot`: `wait` for EC2, or `reboot` the machine, once, so that EC2 need not do it.",
				"What follows the drain: `wait` for EC2, or `reboot`, `stop-start` or `replace` the instance. See docs/events.md.")},
		Setting{"hard_deadline", boolean(&c.HardDeadline),
			"Delete pods that resist eviction in time for the maintenance. Otherwise their disruption budgets are respected to the end."},
		Setting{"codes", pairs(&c.Codes, isCode, "a table of "+quoteAll(codes)+", each one of "+quoteAll(whens)).initially(initialCodes),
			"When the action is taken for each event code: at once (`now`), `lead` before the maintenance, near its date (`window`), or not, with (`notify`) or without (`ignore`) a report. `other` is every other code."},
	)
}

// ASGTermination is the table [events.asg-termination].
type ASGTermination struct {
	Action       string
	Budget       time.Duration
	CompleteHook bool
	Hooks        []string // nil is the hooks that pkg/asg chooses
	OnIncomplete string   // "continue" or "abandon"
}

// table describes the table [events.asg-termination]. Each Setting reads and shows a field of c.
func (c *ASGTermination) table(p program) Table {
	return p.table(tableOf(event.ASGTermination), p.either("The Auto Scaling group has chosen the instance for termination.",
		"The Auto Scaling group terminates the instance, and waits at a lifecycle hook."),
		actionSetting(&c.Action, "drain"),
		Setting{"budget", duration(&c.Budget, time.Second, 2*day).initially("15m"),
			p.either("How long the drain may take. Heartbeats hold the machine that long; if nth may not send them, keep this within the timeout of the group's lifecycle hook.",
				"How long the drain may take, once its turn has come. Heartbeats hold the machine that long.")},
		Setting{"complete_hook", boolean(&c.CompleteHook).initially(true),
			p.either("Hold the machine by heartbeats during a drain, and complete the group's lifecycle hook at its end. It needs a policy: see docs/lifecycle.md.",
				"Hold the machine by heartbeats during a drain, and complete the group's lifecycle hook at its end.")},
		hooksSetting("hooks", &c.Hooks, p.either("the group's only one, unless it notifies somebody or is that of an EKS managed node group.", queuesHooks)),
		Setting{"on_incomplete", choice(&c.OnIncomplete, "continue", "abandon").initially("continue"),
			"How hooks are completed when time is over and pods are left: `abandon` keeps the machine, running, where the group's policy says `TerminateHookAbandon=retain`. No pod is deleted for the end of the `budget` then."},
	)
}

// hooksSetting is the setting for a list of lifecycle hooks to complete. ifEmpty says, in its text, which hooks an empty list means.
func hooksSetting(key string, at *[]string, ifEmpty string) Setting {
	return Setting{key, list(at, func(s string) bool { return s != "" }, `a list of names of lifecycle hooks, such as ["drain"]`),
		"The lifecycle hooks to complete. Empty is " + ifEmpty}
}

// queuesHooks says which hooks nth-queue completes if no setting names hooks.
const queuesHooks = "those that notify the queue, or else the group's only one, unless it notifies somebody else or is that of an EKS managed node group."

// Shutdown is the table [events.shutdown].
type Shutdown struct {
	Action   string
	PowerKey string // the program that answers it: "nth" or "logind"
}

// table describes the table [events.shutdown]. Each Setting reads and shows a field of c.
func (c *Shutdown) table() Table {
	return Table{tableOf(event.Shutdown), "The operating system goes down, for any reason.", []Setting{
		actionSetting(&c.Action, "drain"),
		{"power_key", choice(&c.PowerKey, "nth", "logind").initially("nth"),
			"Who answers the power button, which is how EC2 stops a machine. `nth`: if `action` is `drain`, nth drains the node, and then has logind power off. `logind` announces a shutdown to nth and the kubelet at once. See docs/shutdown.md."},
	}}
}

// Plain is the table of a kind of event that has no setting but its action.
type Plain struct {
	Action string
}

// table describes the table for a kind of event, whose meaning is doc. Each Setting reads and shows a field of c.
func (c *Plain) table(kind event.Kind, initial, doc string) Table {
	return Table{tableOf(kind), doc, []Setting{actionSetting(&c.Action, initial)}}
}
