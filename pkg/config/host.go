package config

import (
	"slices"
	"strings"
	"time"
)

// IMDS is the table [imds].
type IMDS struct {
	Endpoint       string // "" is the address of EC2's service
	Interval       time.Duration
	WithdrawnAfter time.Duration
}

// table describes the table [imds]. Each Setting reads and shows a field of c.
func (c *IMDS) table() Table {
	return Table{"imds", "The instance metadata service, which announces what EC2 is going to do.", []Setting{
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address, for rehearsals. Empty is 169.254.169.254, or [fd00:ec2::254] with `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6` in the environment."},
		{"interval", duration(&c.Interval, 50*time.Millisecond, 30*time.Second).initially("500ms"),
			"How often to look for a spot interruption. The lifecycle state is read a quarter as often, the rebalance recommendation a tenth, maintenance a sixtieth."},
		{"withdrawn_after", duration(&c.WithdrawnAfter, 0, day).initially("30s"),
			"How long an announcement must be missing, while the metadata service answers, before it counts as withdrawn. Maintenance must be missing 120 times as long."},
	}}
}

// LoadBalancers is the table [load_balancers].
type LoadBalancers struct {
	TargetGroups []string // ARNs, or "all" alone; nil is none
}

// table describes the table [load_balancers]. Each Setting reads and shows a field of c.
func (c *LoadBalancers) table() Table {
	return Table{"load_balancers", "Load balancers of AWS, which nth asks with the instance's role.", []Setting{
		{"target_groups", targetGroups(&c.TargetGroups),
			"ARNs of the target groups that this node is in; `[\"all\"]` is those of the instance's VPC. Evictions wait until the node is out of them, instead of for `drain.load_balancer_wait`. It needs a policy: see docs/load-balancers.md."},
	}}
}

// targetGroups is a list of ARNs of target groups, or a list of "all" alone.
func targetGroups(at *[]string) value {
	isGroup := func(s string) bool {
		return s == "all" || strings.HasPrefix(s, "arn:") && strings.Contains(s, ":targetgroup/")
	}
	v := list(at, isGroup, `a list of ARNs of target groups, or ["all"]`)
	setList := v.set
	v.set = func(got any) bool {
		groups, _ := got.([]any) // setList refuses what is no list.
		allAmongOthers := len(groups) > 1 && slices.Contains(groups, "all")
		return !allAmongOthers && setList(got)
	}
	return v
}
