package config

import (
	"net/url"
	"strings"
)

// SQS is the table [queue].
type SQS struct {
	URL string
}

// table describes the table [queue]. Each Setting reads and shows a field of c.
func (c *SQS) table() Table {
	return Table{"queue", "The SQS queue that EventBridge, Auto Scaling or SNS fill.", []Setting{
		{"url", optionalText(&c.URL, isQueueURL, `a queue's URL such as "https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions"`),
			"The queue's URL, or that of a VPC endpoint, whose host is asked; it must be set. Events of other accounts than the one in it are ignored."},
	}}
}

// Fleet is the table [fleet].
type Fleet struct {
	MaxDraining      int // 0 is no limit
	MaxPerGroup      int // 0 is no limit
	GroupLabel       string
	ManagedTag       string // "" is any instance
	Cluster          string // "" is the name in ManagedTag, if that is a cluster's tag
	Taints           string // the effect of a taint, or "none"
	OutOfService     bool
	CompleteLaunches bool
	LaunchHooks      []string // nil is the hooks that pkg/asg chooses
}

// table describes the table [fleet]. Each Setting reads and shows a field of c.
func (c *Fleet) table() Table {
	return Table{"fleet", "Which nodes are drained, and how many at once.", []Setting{
		{"max_draining", number(&c.MaxDraining, 0, 100_000),
			"How many nodes are drained at once, 150 at most. What is gone within three minutes, such as a spot instance, counts, but does not wait: it has 50 places more. `0` is 150."},
		{"max_per_group", number(&c.MaxPerGroup, 0, 100_000),
			"The same for nodes with one value of `group_label`. `0` is no limit."},
		{"group_label", anyText(&c.GroupLabel).initially("topology.kubernetes.io/zone"),
			"The label that makes nodes a group: the zone, or a node pool's name."},
		{"managed_tag", anyText(&c.ManagedTag),
			"Drain only nodes whose instance has a tag with this key. Empty is every node of the cluster."},
		{"cluster", optionalText(&c.Cluster, isCluster, "a cluster's name of up to 106 characters"),
			"NAME in the tag `kubernetes.io/cluster/NAME` of this cluster's instances. It says whose an instance without a Node is: see docs/queue.md. Empty is the name in `managed_tag`, if that is such a tag. Set it where Nodes do not name their instance: two instances of a region may have one private address."},
		{"taints", choice(&c.Taints, "none", "NoSchedule", "PreferNoSchedule", "NoExecute").initially("none"),
			"Taint a node with aws-node-termination-handler's key for the kind of event, and with this effect."},
		{"out_of_service", boolean(&c.OutOfService),
			"Taint a node `node.kubernetes.io/out-of-service` once its instance is stopped or terminated, so that its volumes can go elsewhere."},
		{"complete_launches", boolean(&c.CompleteLaunches).initially(true),
			"Complete the launch hook of an Auto Scaling group once the new instance's Node is Ready."},
		hooksSetting("launch_hooks", &c.LaunchHooks, queuesHooks),
	}}
}

// isQueueURL reports whether s is the URL of a queue: its path has two parts, the account and the queue's name.
func isQueueURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && isEndpoint(s) && len(strings.Split(strings.Trim(u.Path, "/"), "/")) == 2
}

// isCluster reports whether s can be NAME in a tag's key kubernetes.io/cluster/NAME. AWS allows 128 characters in a key.
func isCluster(s string) bool {
	return len(s) <= 106 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' })
}
