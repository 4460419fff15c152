package config

import (
	"regexp"
	"sync"
	"time"
)

// IMDS is the table [imds].
type IMDS struct {
	Endpoint            string // "" is the service's own address
	UrgentInterval      time.Duration
	RebalanceInterval   time.Duration
	MaintenanceInterval time.Duration
	LifeCycles          []string // nil is all
}

var lifeCycles = []string{"spot", "on-demand", "scheduled", "capacity-block", "interruptible-capacity-reservation"}

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
		{"life_cycles", choices(&c.LifeCycles, lifeCycles),
			"Watch only on instances of these life cycles (`[\"spot\"]`), so that one image serves all. Empty is all of them."},
	}}
}

// LoadBalancers is the table [load_balancers].
type LoadBalancers struct {
	TargetGroups []string // ARNs, or "all" alone; nil is none
	Endpoint     string   // "" is the region's own
}

func (c *LoadBalancers) table() table {
	return table{"load_balancers", "Load balancers of AWS, which are asked with the role of the instance when they are done with it.", []setting{
		{"target_groups", targetGroups{names{&c.TargetGroups, targetGroup, `a list of ARNs of target groups, or ["all"]`}},
			"The target groups of Elastic Load Balancing that this node or its pods are in, by their ARNs. Evictions wait until the node is out of them, instead of for `drain.load_balancer_wait`, and the end of the drain until its pods are. `[\"all\"]` stands for those of the instance's VPC. Empty asks nothing. It needs a policy on the instance's role, see docs/load-balancers.md."},
		{"endpoint", optionalEndpoint(&c.Endpoint),
			"Another address to ask, such as that of a VPC endpoint without private DNS, or a rehearsal's. Empty is the region's own, or what `AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2`, `AWS_USE_FIPS_ENDPOINT` and their like in the environment say."},
	}}
}

// allGroups stands for the target groups of the VPC.
const allGroups = "all"

// targetGroupARN is compiled when one is configured: it is the largest of all expressions here.
var targetGroupARN = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:\d{12}:targetgroup/[A-Za-z0-9-]{1,32}/[0-9a-f]{16}$`)
})

func targetGroup(s string) bool { return s == allGroups || targetGroupARN().MatchString(s) }

// targetGroups are names, of which one stands for all and goes alone.
type targetGroups struct{ names }

func (v targetGroups) set(got any, fault func(string, any, string)) {
	if list, ok := got.([]any); ok && len(list) > 1 {
		for _, item := range list {
			if item == allGroups {
				fault("", got, v.want)
				return
			}
		}
	}
	v.names.set(got, fault)
}
