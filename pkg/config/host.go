package config

import (
	"regexp"
	"slices"
	"sync"
	"time"
)

// IMDS is the table [imds].
type IMDS struct {
	Endpoint       string // "" is the address of EC2's service
	Interval       time.Duration
	WithdrawnAfter time.Duration
	LifeCycles     []string // nil is all
}

var lifeCycles = []string{"spot", "on-demand", "scheduled", "capacity-block", "interruptible-capacity-reservation"}

func isLifeCycle(s string) bool { return slices.Contains(lifeCycles, s) }

func (c *IMDS) table() Table {
	return Table{"imds", "The instance metadata service, which announces what EC2 is going to do.", []Setting{
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, for rehearsals. Empty is EC2's own: 169.254.169.254, or [fd00:ec2::254] where only that answers. `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6` in the environment, or `IPv4`, leaves one of them."},
		{"interval", duration(&c.Interval, 50*time.Millisecond, 30*time.Second),
			"How often to look for a spot interruption. The Auto Scaling lifecycle state is looked at a quarter as often, the rebalance recommendation a tenth, and scheduled maintenance a sixtieth."},
		{"withdrawn_after", duration(&c.WithdrawnAfter, 0, day),
			"How long an announcement must be missing, while the metadata service answers, before it counts as withdrawn and what was done for it is undone. Scheduled maintenance must be missing 120 times as long: EC2's history of it lags."},
		{"life_cycles", list(&c.LifeCycles, isLifeCycle, "a list of any of "+quoteAll(lifeCycles)),
			"Watch only on instances of these life cycles (`[\"spot\"]`), so that one image serves all. Empty is all of them."},
	}}
}

// LoadBalancers is the table [load_balancers].
type LoadBalancers struct {
	TargetGroups []string // ARNs, or "all" alone; nil is none
}

func (c *LoadBalancers) table() Table {
	return Table{"load_balancers", "Load balancers of AWS, which are asked with the role of the instance when they are done with it.", []Setting{
		{"target_groups", targetGroups(&c.TargetGroups),
			"The target groups of Elastic Load Balancing that this node or its pods are in, by their ARNs. Evictions wait until the node is out of them, instead of for `drain.load_balancer_wait`, and the end of the drain until its pods are. `[\"all\"]` stands for those of the instance's VPC. Empty asks nothing. It needs a policy on the instance's role, see docs/load-balancers.md."},
	}}
}

// targetGroupARN is compiled when a target group is configured, as it is the largest expression here.
var targetGroupARN = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:\d{12}:targetgroup/[A-Za-z0-9-]{1,32}/[0-9a-f]{16}$`)
})

// targetGroups is a list of ARNs, or "all" alone.
func targetGroups(at *[]string) value {
	v := list(at, func(s string) bool { return s == "all" || targetGroupARN().MatchString(s) }, `a list of ARNs of target groups, or ["all"]`)
	read := v.read
	v.read = func(got any) ([]string, bool) {
		groups, ok := read(got)
		return groups, ok && (len(groups) == 1 || !slices.Contains(groups, "all"))
	}
	return v
}
