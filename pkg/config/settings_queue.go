package config

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

func (c *Queue) top() table {
	return table{"", "", []setting{
		{"dry_run", boolean{&c.DryRun},
			"Watch, decide and log what would be done, but write nothing to the cluster, complete no lifecycle action and delete no message."},
		{"state_directory", directory(&c.StateDirectory),
			"Where nth-queue keeps notices that the webhook has not taken yet. `$STATE_DIRECTORY` goes before it."},
		{"runtime_directory", directory(&c.RuntimeDirectory),
			"Where nth-queue shows how it stands. `$RUNTIME_DIRECTORY` overrides it."},
	}}
}

func (c *SQS) table() table {
	return table{"queue", "The SQS queue that EventBridge, Auto Scaling or SNS fill.", []setting{
		{"url", text{&c.URL, isQueueURL, `a queue's URL such as "https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions", or ""`},
			"The queue's URL. nth-queue does not start without it."},
		{"visibility", duration{&c.Visibility, 10 * time.Second, time.Hour},
			"How long a message is kept from other consumers at a time. It is extended while its nodes are drained; where a process was killed, another one goes on after that."},
		{"receivers", number{&c.Receivers, 1, 64},
			"How many requests wait for messages at the same time. Each brings up to ten."},
	}}
}

func (c *QueueKubernetes) table() table {
	return table{"kubernetes", "The way to the API server, and what is told there.", append([]setting{
		{"kubeconfig", optionalFile(&c.Kubeconfig),
			"The kubeconfig of an identity with the rights in docs/queue.md. Empty is the service's credential `kubeconfig` (`$CREDENTIALS_DIRECTORY`), which the unit loads from `/etc/nth/nth-queue.kubeconfig`, or else the service account of the pod that nth-queue runs in."},
		{"token", choice{&c.Token, tokens},
			"How to obtain the EKS token where the kubeconfig names a plugin for that (`aws eks get-token`, `aws-iam-authenticator`): made by nth-queue itself with the credentials by which it asks AWS, as the plugin would (`eks`), or by running the plugin (`plugin`). `auto` makes it where the plugin is asked for nothing but a cluster's token, and runs the plugin elsewhere, and where that fails or the token is refused."},
	}, c.ToldCluster.settings()...)}
}

func (c *Metrics) queueTable() table {
	return table{"metrics", "Metrics for Prometheus, and whether nth-queue is alive. docs/metrics.md lists them.", []setting{
		listenSetting(&c.Listen),
		{"textfile", textfile(&c.Textfile),
			"A file that node_exporter's textfile collector reads. The service's user has to be allowed to write into its directory, see docs/metrics.md. Empty is none."},
		compatibleSetting(&c.Compatible),
	}}
}

var (
	effects  = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
	unknowns = []string{"delete", "leave"}
)

func (c *Fleet) table() table {
	return table{"fleet", "Which nodes are drained, and how many at once.", []setting{
		{"max_draining", number{&c.MaxDraining, 0, 100_000},
			"How many nodes are drained at once, by all nth-queue processes together. What is gone in three minutes or less, such as a spot interruption, does not wait, but counts. `0` is no limit."},
		{"max_per_group", number{&c.MaxPerGroup, 0, 100_000},
			"The same for the nodes of one group, which have the same value of `group_label`. `0` is no limit."},
		{"group_label", text{&c.GroupLabel, isKey, "a label's key"},
			"The label that makes nodes a group: the zone, or a node pool's name."},
		{"managed_tag", text{&c.ManagedTag, isTag, "a tag's key of up to 128 characters, or \"\""},
			"Drain only nodes whose instance, or the Auto Scaling group of the instance, has a tag with this key. Empty is every node of the cluster; EC2 is not asked for this tag then."},
		{"cluster", text{&c.Cluster, isCluster, "a cluster's name of up to 106 characters, or \"\""},
			"This cluster's name in the tags of its instances, whose key is `kubernetes.io/cluster/` and the name. An instance without a Node is this cluster's if it has that tag, and another's if it has only such tags with other names; docs/queue.md says what that leads to. Empty is the name in `managed_tag` if that is such a key, or else the one by which EC2 says that the instances of all Nodes are tagged, if that is one."},
		{"unknown", choice{&c.Unknown, unknowns},
			"What becomes of a message about an instance that has no Node in this cluster, or lacks the tag in `managed_tag`: it is deleted, or left for others who read the queue, unless the instance is known to be this cluster's by `cluster`."},
		{"uncordon_started", boolean{&c.UncordonStarted},
			"Lift a cordon of nth's when EC2 says that the instance has been started since, and its Node is Ready."},
		{"taints", boolean{&c.Taints},
			"Taint a node with the key that aws-node-termination-handler uses for the kind of event."},
		{"taint_effect", choice{&c.TaintEffect, effects},
			"The effect of that taint."},
		{"out_of_service", boolean{&c.OutOfService},
			"Taint a node `node.kubernetes.io/out-of-service` once EC2 says that its instance is stopped or terminated, so that its volumes can go elsewhere."},
		{"delete_node", boolean{&c.DeleteNode},
			"Delete the Node of an instance that is terminated, as EC2 has told and says when it is asked, after the drain, and once its volumes are detached, for seven minutes at most. Only where `spec.providerID` names the instance. It needs one right more, see docs/queue.md."},
		{"restart_wait", duration{&c.RestartWait, 0, time.Hour},
			"Have the Deployment or StatefulSet of a pod with the annotation `nth-project.github.io/evict: after-restart` restarted, as `kubectl rollout restart` does, and evict the pod only if it is still there after this time; half of the time before a deadline at most. `0s` restarts nothing. It needs some rights more, see docs/queue.md."},
		{"complete_launches", boolean{&c.CompleteLaunches},
			"Complete the launch hook of an Auto Scaling group once the new instance's Node is Ready."},
		hooksSetting("launch_hooks", &c.LaunchHooks, "unless "+ofOthers),
		{"after_drain", choice{&c.AfterDrain, []string{"keep", "terminate", "detach"}},
			"What becomes of an instance of an Auto Scaling group whose node was drained for a rebalance recommendation, or as it is to be stopped or retired: it stays (`keep`), or its group ends it (`terminate`) or lets go of it, running (`detach`), and has another in its place. It needs two permissions more, see docs/queue.md."},
	}}
}

// ofOthers says which hook nobody guesses to be nth-queue's.
const ofOthers = "it notifies somebody else or is one of an EKS managed node group; and those that notify the queue are completed, whatever else there is. See docs/lifecycle.md."

func (c *Termination) queueTable() table {
	return table{tableOf(event.ASGTermination), "The Auto Scaling group terminates the instance, and waits at a lifecycle hook.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"budget", duration{&c.Budget, time.Second, 2 * day},
			"How long the drain may take, from when its turn has come. Heartbeats hold the machine that long."},
		{"complete_hook", boolean{&c.CompleteHook},
			"If `action` is `drain`: hold the machine by heartbeats while it lasts, and complete the group's lifecycle hook when it has ended or its time is over."},
		hooksSetting("hooks", &c.Hooks, "unless "+ofOthers),
		c.onIncomplete(),
	}}
}

func (c *QueueSpot) table() table {
	return table{tableOf(event.SpotInterruption), "EC2 reclaims a spot instance, with about two minutes' notice.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"hibernate", choice{&c.Hibernate, actions},
			"What is done instead if the instance will only be hibernated; never more than `action`."},
	}}
}

func (c *QueueRebalance) table() table {
	return table{tableOf(event.RebalanceRecommendation), "A spot instance is at elevated risk of interruption.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"cordon_for", duration{&c.CordonFor, 0, 12 * time.Hour},
			"How long a cordon lasts if no drain follows; `0s` is for ever."},
	}}
}

func (c *QueueMaintenance) table() table {
	return table{tableOf(event.ScheduledMaintenance), "EC2 has planned a reboot, stop, retirement or maintenance, of which AWS Health writes.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"lead", duration{&c.Lead, 0, 30 * day},
			"How long before the change begins the action does at the latest, for codes that say `lead` or `window`."},
		{"window", duration{&c.Window, 0, 30 * day},
			"How long before the change begins the action does at the earliest, for codes that say `window`. It is never less than `lead` and `spread` together. Where nth-queue may not ask EC2 for what it has scheduled, the action begins thirteen days after it was announced in any case: SQS forgets a message after fourteen."},
		{"spread", duration{&c.Spread, 0, day}, spreadDoc},
		{"hard_deadline", boolean{&c.HardDeadline},
			"Delete pods that resist eviction in time for the change. Otherwise their disruption budgets are respected to the end."},
		{"codes", choiceOfEach{&c.Codes, codes, whens},
			"When the action is taken for each event code: at once (`now`), `lead` before the change, near its date (`window`), or not, with (`notify`) or without (`ignore`) a word. `other` is every code that EC2 may yet invent."},
	}}
}

func (c *Budgeted) table(kind event.Kind, doc string) table {
	return table{tableOf(kind), doc, []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"budget", duration{&c.Budget, time.Second, 2 * day},
			"How long the drain may take where the message names no time."},
	}}
}

func (c *QueueStatusCheck) table() table {
	return table{tableOf(event.StatusCheck), "A status check of EC2's fails, of the instance or of the system below it. EC2 is asked for those each minute.", []setting{
		{"action", choice{&c.Action, actions}, actionDoc},
		{"after", duration{&c.After, 0, day},
			"How long the check must have failed. What has begun is taken back once it has passed for a quarter of an hour."},
		{"budget", duration{&c.Budget, time.Second, 2 * day},
			"How long a drain may take. Pods that resist eviction are not deleted then: the machine may yet recover."},
	}}
}

func isQueueURL(s string) bool {
	if s == "" {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && isEndpoint(s) && len(strings.Split(strings.Trim(u.Path, "/"), "/")) == 2
}

func isTag(s string) bool {
	return len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' })
}

// isCluster tells whether a tag's key can end with a text after "kubernetes.io/cluster/".
func isCluster(s string) bool {
	return len(s) <= 106 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' })
}

// number is a whole number within bounds.
type number struct {
	at       *int
	min, max int
}

func (v number) allowed() string { return fmt.Sprintf("a whole number from %d to %d", v.min, v.max) }
func (v number) show() string    { return strconv.Itoa(*v.at) }

func (v number) set(got any, fault func(string, any, string)) {
	n, ok := got.(int64)
	if !ok || n < int64(v.min) || n > int64(v.max) {
		fault("", got, v.allowed())
		return
	}
	*v.at = int(n)
}
