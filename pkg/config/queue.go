package config

import (
	"net/url"
	"strings"
)

// SQS is the table [queue].
type SQS struct {
	URL string
}

func (c *SQS) table() Table {
	return Table{"queue", "The SQS queue that EventBridge, Auto Scaling or SNS fill.", []Setting{
		{"url", optionalText(&c.URL, isQueueURL, `a queue's URL such as "https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions"`),
			"The queue's URL, also that of a VPC endpoint: its host is asked. Events of another account than the one in it are not ours. nth-queue does not start without it."},
	}}
}

// Fleet is the table [fleet].
type Fleet struct {
	MaxDraining      int // 0 is no limit
	MaxPerGroup      int // 0 is no limit
	GroupLabel       string
	ManagedTag       string // "" is any instance
	Cluster          string // "" is found by the tags of the Nodes' instances
	Unknown          string // delete or leave
	Taints           string // an effect, or none
	OutOfService     bool
	CompleteLaunches bool
	LaunchHooks      []string // nil is the only hook of the group
	AfterDrain       string   // keep, terminate or detach
}

func (c *Fleet) table() Table {
	return Table{"fleet", "Which nodes are drained, and how many at once.", []Setting{
		{"max_draining", number(&c.MaxDraining, 0, 100_000),
			"How many nodes are drained at once, 200 at most. What is gone in three minutes or less, such as a spot interruption, does not wait, but counts. `0` is no limit."},
		{"max_per_group", number(&c.MaxPerGroup, 0, 100_000),
			"The same for the nodes of one group, which have the same value of `group_label`. `0` is no limit."},
		{"group_label", text(&c.GroupLabel, isKey, "a label's key"),
			"The label that makes nodes a group: the zone, or a node pool's name."},
		{"managed_tag", optionalText(&c.ManagedTag, isTag, "a tag's key of up to 128 characters"),
			"Drain only nodes whose instance, or the Auto Scaling group of the instance, has a tag with this key. Empty is every node of the cluster; EC2 is not asked for this tag then."},
		{"cluster", optionalText(&c.Cluster, isCluster, "a cluster's name of up to 106 characters"),
			"This cluster's name in the tags of its instances, whose key is `kubernetes.io/cluster/` and the name. An instance without a Node is this cluster's if it has that tag, and another's if it has only such tags with other names; docs/queue.md says what that leads to. Empty is the name in `managed_tag` if that is such a key, or else the one by which EC2 says that the instances of Nodes are tagged, if that is one. Where Nodes do not name their instance, set it: two instances of a region may have one private address."},
		{"unknown", choice(&c.Unknown, "delete", "leave"),
			"What becomes of a message about an instance that has no Node in this cluster, or lacks the tag in `managed_tag`: it is deleted, or left for others who read the queue, unless the instance is known to be this cluster's by `cluster`."},
		{"taints", choice(&c.Taints, "none", "NoSchedule", "PreferNoSchedule", "NoExecute"),
			"Taint a node with the key that aws-node-termination-handler uses for the kind of event: with this effect, or not."},
		{"out_of_service", boolean(&c.OutOfService),
			"Taint a node `node.kubernetes.io/out-of-service` once EC2 says that its instance is stopped or terminated, so that its volumes can go elsewhere."},
		{"complete_launches", boolean(&c.CompleteLaunches),
			"Complete the launch hook of an Auto Scaling group once the new instance's Node is Ready."},
		hooksSetting("launch_hooks", &c.LaunchHooks, "unless "+ofOthers),
		{"after_drain", choice(&c.AfterDrain, "keep", "terminate", "detach"),
			"What becomes of an instance of an Auto Scaling group whose node was drained for a rebalance recommendation, or as it is to be stopped or retired: it stays (`keep`), or its group ends it (`terminate`) or lets go of it, running (`detach`), and has another in its place. It needs two permissions more, see docs/queue.md."},
	}}
}

func isQueueURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isEndpoint(s) && len(strings.Split(strings.Trim(u.Path, "/"), "/")) == 2
}

func isTag(s string) bool {
	return len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' })
}

// isCluster tells whether s can be the end of a tag's key that begins with "kubernetes.io/cluster/".
func isCluster(s string) bool {
	return len(s) <= 106 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' })
}
