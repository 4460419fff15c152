package config

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// table is one TOML table; the one without a name is the top of the file.
type table struct {
	name, doc string
	settings  []setting
}

// setting is one key of a table.
type setting struct {
	name  string
	value value
	doc   string
}

const day = 24 * time.Hour

var (
	actions    = []string{"ignore", "notify", "cordon", "drain"}
	levels     = []string{"debug", "info", "warning", "error"}
	formats    = []string{"auto", "text", "journal", "json", "prefix"}
	lifeCycles = []string{"spot", "on-demand", "scheduled", "capacity-block", "interruptible-capacity-reservation"}
	codes      = []string{"instance-stop", "instance-retirement", "system-reboot", "instance-reboot", "system-maintenance", "other"}
	keyOwners  = []string{"nth", "logind"}
	whens      = []string{"now", "lead", "window", "notify", "ignore"}
)

// tables describes every key there is, with its place in c.
func (c *Config) tables() []table {
	tables := []table{c.top(), c.Log.table(), c.IMDS.table(), c.AWS.table(), c.Kubernetes.table(), c.Drain.hostTable(), c.LoadBalancers.table(), c.Webhook.table(), c.Metrics.table()}
	return append(tables, c.Events.tables()...)
}

func (c *Config) top() table {
	return table{"", "", []setting{
		{"dry_run", boolean{&c.DryRun},
			"Watch, decide and log what would be done, but write nothing to the cluster except `kubernetes.heartbeat`."},
		{"state_directory", directory(&c.StateDirectory),
			"Where nth remembers what it has seen and done. `$STATE_DIRECTORY`, which systemd sets from `StateDirectory=`, overrides it."},
		{"runtime_directory", directory(&c.RuntimeDirectory),
			"Where nth keeps what needs not outlive a reboot. `$RUNTIME_DIRECTORY` overrides it."},
		{"host_root", optionalFile(&c.HostRoot),
			"Where the host's file system begins for an nth that runs in a container or a chroot of its own: the kubelet's files and plugin, and the sockets of D-Bus and systemd, are looked for below. Empty is `/`."},
	}}
}

func (c *Log) table() table {
	return table{"log", "Logging.", []setting{
		{"level", choice{&c.Level, levels},
			"The lowest level that is logged."},
		{"format", choice{&c.Format, formats},
			"`journal` writes to the systemd journal with fields, `text` and `json` write lines to standard error. `prefix` writes lines that begin with a priority such as `<6>` to standard output, for what hands them to a journal. `auto` is `journal` when systemd connects standard error to the journal, `prefix` in a host container of Bottlerocket, else `text`."},
	}}
}

func (c *IMDS) table() table {
	return table{"imds", "The instance metadata service, which announces what EC2 is going to do.", []setting{
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, for rehearsals. Empty is EC2's own: 169.254.169.254, or [fd00:ec2::254] where only that answers. `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6` in the environment, or `IPv4`, leaves one of them."},
		{"urgent_interval", duration{&c.UrgentInterval, 100 * time.Millisecond, 30 * time.Second},
			"How often to poll the documents that give only minutes of notice: spot interruption and Auto Scaling lifecycle state. What EC2 does not send to instances of this life cycle is looked at every five seconds."},
		{"rebalance_interval", duration{&c.RebalanceInterval, 100 * time.Millisecond, 10 * time.Minute},
			"How often to poll the rebalance recommendation."},
		{"maintenance_interval", duration{&c.MaintenanceInterval, 100 * time.Millisecond, time.Hour},
			"How often to poll scheduled maintenance."},
		{"life_cycles", choices{&c.LifeCycles, lifeCycles},
			"Watch only on instances of these life cycles (`[\"spot\"]`), so that one image serves all. Empty is all of them."},
	}}
}

// hostTable is the table for a program on the machine itself, where there are scripts to run.
func (c *Drain) hostTable() table {
	t := c.table()
	t.settings = append([]setting{
		{"scripts_wait", duration{&c.ScriptsWait, 0, time.Hour},
			"The longest wait, once the node is cordoned, for the units that `nth-before-drain.target` wants, before the first eviction; a quarter of the time before a hard deadline at most. With `0s` the target is not started."},
	}, t.settings...)
	return t
}

func (c *Drain) table() table {
	return table{"drain", "How nodes are drained, whatever the event.", []setting{
		{"evict_after", duration{&c.EvictAfter, 0, time.Hour},
			"How long to wait between the cordon and the first eviction."},
		{"margin", duration{&c.Margin, 0, 10 * time.Minute},
			"How long before a hard deadline every pod should be gone. A pod that resists eviction is deleted when only its grace period and this margin are left."},
		{"pod_grace_period", optionalDuration{&c.PodGracePeriod, 0, day},
			"The grace period given to every pod. Empty is each pod's own."},
		{"protect_empty_dir", boolean{&c.ProtectEmptyDir},
			"Do not evict pods with `emptyDir` volumes."},
		{"protect_unmanaged", boolean{&c.ProtectUnmanaged},
			"Do not evict pods without a controller, which nothing would recreate."},
		{"exclude_from_load_balancers", boolean{&c.ExcludeFromLoadBalancers},
			"Label the node `node.kubernetes.io/exclude-from-external-load-balancers` before evicting."},
		{"load_balancer_wait", duration{&c.LoadBalancerWait, 0, time.Hour},
			"How long to wait after that label, for load balancers to notice."},
		{"volume_wait", duration{&c.VolumeWait, 0, time.Hour},
			"The longest wait, once the pods are gone, for their volumes to be released. It ends `margin` before a deadline at the latest."},
	}}
}

func (c *Events) tables() []table {
	return []table{
		c.SpotInterruption.table(),
		c.RebalanceRecommendation.table(),
		c.ScheduledMaintenance.table(),
		c.ASGTermination.table(),
		c.Shutdown.table(),
		c.Hibernation.table(),
		c.ReservationEnd.table(),
	}
}

const (
	actionDoc    = "What to do: nothing at all, only report it, cordon, or cordon and drain."
	spreadDoc    = "Over how long the instances of a fleet begin, for codes that wait: each at a moment of its own, which follows from its instance ID, and none later than `lead` before. `0s` is all at once."
	withdrawnDoc = "How long the announcement must have been missing, while the metadata service answers, before it counts as withdrawn and what was done for it is undone."
)

func (c *SpotInterruption) table() table {
	return table{tableOf(event.SpotInterruption), "EC2 reclaims a spot instance, with about two minutes' notice.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"hibernate", choice{&c.Hibernate, actions},
			"What is done instead if the instance will only be hibernated; never more than `action`."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
	}}
}

func (c *RebalanceRecommendation) table() table {
	return table{tableOf(event.RebalanceRecommendation), "A spot instance is at elevated risk of interruption.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"cordon_for", duration{&c.CordonFor, 0, 30 * day},
			"How long a cordon lasts if no drain follows; `0s` is until the recommendation is withdrawn."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
	}}
}

func (c *ScheduledMaintenance) table() table {
	return table{tableOf(event.ScheduledMaintenance), "EC2 has planned a reboot, stop, retirement or maintenance.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"lead", duration{&c.Lead, 0, 30 * day},
			"How long before the maintenance begins (`NotBefore`) the action does at the latest, for codes that say `lead` or `window`."},
		{"window", duration{&c.Window, 0, 30 * day},
			"How long before the maintenance begins the action does at the earliest, for codes that say `window`. It is never less than `lead` and `spread` together."},
		{"spread", duration{&c.Spread, 0, day}, spreadDoc},
		{"hard_deadline", boolean{&c.HardDeadline},
			"Delete pods that resist eviction in time for the window. Otherwise their disruption budgets are respected to the end."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
		{"codes", choiceOfEach{&c.Codes, codes, whens},
			"When the action is taken for each event code: at once (`now`), `lead` before the maintenance begins, near its date (`window`), or not, with (`notify`) or without (`ignore`) a word. `other` is every code that EC2 may yet invent."},
	}}
}

func (c *ASGTermination) table() table {
	return table{tableOf(event.ASGTermination), "The Auto Scaling group has chosen the instance for termination.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"budget", duration{&c.Budget, time.Second, 2 * day},
			"How long the drain may take: the announcement names no time. Heartbeats hold the machine that long, if nth may send them; otherwise keep this within the timeout of the group's lifecycle hook."},
		{"complete_hook", boolean{&c.CompleteHook},
			"If `action` is `drain`: hold the machine by heartbeats while it lasts, and complete the group's lifecycle hook when it has ended. It needs a policy on the instance's role, see docs/lifecycle.md."},
		hooksSetting("hooks", &c.Hooks, "unless it notifies somebody or is the one of an EKS managed node group."),
		c.onIncomplete(),
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day}, withdrawnDoc},
	}}
}

// hooksSetting is a list of lifecycle hooks to complete, with which of the group's is completed unless otherwise.
func hooksSetting(key string, at *[]string, unless string) setting {
	return setting{key, names{at, hookName, `a list of names of lifecycle hooks, such as ["drain"]`},
		"The names of the lifecycle hooks to complete. Empty is the group's only one, " + unless}
}

func (c *Termination) onIncomplete() setting {
	return setting{"on_incomplete", choice{&c.OnIncomplete, []string{"continue", "abandon"}},
		"How the hooks are completed when the time is over and pods are left: `abandon` keeps the machine, running, where the group's instance lifecycle policy says so (TerminateHookAbandon=retain), and is `continue` elsewhere. It needs one permission more, see docs/lifecycle.md."}
}

func (c *Shutdown) table() table {
	return table{tableOf(event.Shutdown), "The operating system goes down, whoever asked for it.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"margin", duration{&c.Margin, 0, 10 * time.Minute},
			"How much of the time that there is for a shutdown or a sleep is left unused, so that it goes on by itself."},
		{"power_key", choice{&c.PowerKey, keyOwners},
			"Who answers the power button, which is all that EC2 presses. `nth` drains the node, if `action` is `drain`, and has logind power the machine off then, so that the kubelet's own graceful shutdown comes after it; see docs/shutdown.md. `logind` announces a shutdown to both at once."},
	}}
}

func (c *Hibernation) table() table {
	return table{tableOf(event.Hibernation), "The machine is put to sleep, which is what EC2's hibernation is to it. What was done is undone when it wakes.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
	}}
}

func (c *ReservationEnd) table() table {
	return table{tableOf(event.ReservationEnd), "The Capacity Block, or the interruptible Capacity Reservation, that the instance runs in comes to its end. EC2 is asked for it, which needs a policy on the instance's role, see docs/reservations.md.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"lead", duration{&c.Lead, time.Minute, 30 * day},
			"How long before EC2 begins to terminate instances the action begins: that is half an hour before the end of a Capacity Block, and an hour for UltraServers."},
		{"withdrawn_after", duration{&c.WithdrawnAfter, 0, 7 * day},
			"How long the end must have been missing, while EC2 answers, before it counts as withdrawn and what was done for it is undone."},
	}}
}
