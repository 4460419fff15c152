package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
)

// credentialsLimit bounds the look for credentials.
const credentialsLimit = 15 * time.Second

// credentials finds out where AWS is asked, and with whose credentials. Without them, or a queue, there is no use in asking.
func (c *check) credentials(ctx context.Context, cfg config.Queue) (account aws.Config, known bool) {
	if cfg.Queue.URL == "" {
		return aws.Config{}, false
	}
	account, err := awsConfig(ctx, cfg)
	switch {
	case err != nil:
		c.Fail("aws", "%s", err)
		return aws.Config{}, false
	case account.Region == "":
		c.Fail("aws", "neither the settings nor the queue's URL nor the environment name a region: set aws.region")
		return aws.Config{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, credentialsLimit)
	defer cancel()
	found, err := account.Credentials.Retrieve(ctx)
	if err != nil {
		c.Fail("aws", "looking for credentials: %s", err)
		return aws.Config{}, false
	}
	c.OK("aws", "%s, with the access key %s from %s", account.Region, found.AccessKeyID, sourceOf(found))
	return account, true
}

// sourceOf says where credentials are from, in place of the name that the SDK has for it.
func sourceOf(found aws.Credentials) string {
	name, _, _ := strings.Cut(found.Source, ":")
	switch name {
	case "EnvConfigCredentials":
		return "the environment"
	case "EC2RoleProvider":
		return "the instance's role"
	case "WebIdentityCredentials":
		return "the role of a service account (IRSA)"
	case "CredentialsEndpointProvider":
		return "EKS Pod Identity, or what else the environment names for that"
	}
	return found.Source
}

// services checks what is asked of EC2 and, as far as the settings need it, of Auto Scaling.
func (c *check) services(ctx context.Context, cfg config.Queue, account aws.Config, nodes fleet.Census) {
	catalog := ec2.New(ec2.Options{AWS: account, Tag: cfg.Fleet.ManagedTag})
	switch {
	case cfg.Fleet.ManagedTag != "":
		c.mustDescribe(ctx, catalog, ec2.DescribeInstances, "to know which instances have the tag in fleet.managed_tag")
		c.mustDescribe(ctx, catalog, ec2.DescribeTags, "to know which of their groups have it")
	case nodes.Anonymous > 0:
		c.mustDescribe(ctx, catalog, ec2.DescribeInstances, "to find the nodes that do not tell their instance")
	default:
		c.mayDescribe(ctx, catalog)
	}
	c.maySeeSchedule(ctx, cfg, catalog)
	group := ""
	if len(nodes.Instances) > 0 {
		if groups, clusters, err := catalog.Marks(ctx, nodes.Instances); err == nil { // That EC2 may not be asked has been said.
			c.owner(cfg.Fleet, clusters)
			group = strings.Join(groups[:min(len(groups), 1)], "") // Without one, it is made up.
		}
	}
	if !hookSettings(cfg).Complete && !cfg.Fleet.CompleteLaunches && cfg.Fleet.AfterDrain == string(asg.Keep) {
		c.OK("hook", "lifecycle hooks are disabled by configuration: events.asg-termination, fleet.complete_launches")
		return
	}
	c.hooks(ctx, cfg, account, group)
}

// withoutOwner is what becomes of messages where EC2 does not say whose an instance is.
const withoutOwner = "messages about other clusters' instances are held until the API server has said that they have no Node here, and with fleet.unknown = \"leave\" those about this cluster's own come back until they are dead letters"

// owner checks whether it can be told whose an instance is that has no Node, by the names of clusters in the tags of those that have one.
func (c *check) owner(settings config.Fleet, names []string) {
	set, tagged := clusterOf(settings), strings.Join(names, ", ")
	switch {
	case set != "" && slices.Contains(names, set), set == "" && len(names) == 1:
		c.OK("cluster", "its instances have the tag %s%s", ec2.ClusterTag, cmp.Or(set, tagged))
	case set != "" && len(names) == 0:
		c.Warn("cluster", "it is %q by the settings, but the instances of its Nodes have no tag %s%s", set, ec2.ClusterTag, set)
	case set != "":
		c.Warn("cluster", "it is %q by the settings, but the instances of its Nodes are tagged as of %s (%sNAME)", set, tagged, ec2.ClusterTag)
	case len(names) == 0:
		c.Warn("cluster", "the instances of its Nodes have no tag %sNAME, so that nobody can say whose an instance is that has no Node: %s", ec2.ClusterTag, withoutOwner)
	default:
		c.Warn("cluster", "the instances of its Nodes are tagged as of %s (%sNAME): set fleet.cluster, or nobody can say whose an instance is that has no Node and another name; %s",
			tagged, ec2.ClusterTag, withoutOwner)
	}
}

// mustDescribe checks a right that messages cannot be understood without.
func (c *check) mustDescribe(ctx context.Context, catalog *ec2.Catalog, right ec2.Right, why string) {
	allowed, err := catalog.May(ctx, right)
	if err != nil {
		c.Fail("right", "%s", err)
		return
	}
	c.Right(string(right), why, false, allowed)
}

// mayDescribe checks the right that few messages need: those about stops, if they are minutes old, those about Capacity
// Blocks, which do not name their instances, and those about hooks of instances that have no node.
func (c *check) mayDescribe(ctx context.Context, catalog *ec2.Catalog) {
	allowed, err := catalog.May(ctx, ec2.DescribeInstances)
	switch {
	case err != nil:
		c.Warn("right", "%s", err)
	case !allowed:
		c.Warn("right", "%s: refused; a stop that is told minutes late and the end of a Capacity Block would drain no node, an instance without one would hold up its group, and nobody could say whose it is: %s",
			ec2.DescribeInstances, withoutOwner)
	default:
		c.OK("right", "%s", ec2.DescribeInstances)
	}
}

// maySeeSchedule checks the right to know what EC2 has scheduled and which status checks fail, if the settings have anything done about
// that. Without it, messages about maintenance count as they were written.
func (c *check) maySeeSchedule(ctx context.Context, cfg config.Queue, catalog *ec2.Catalog) {
	if policy.Action(cfg.Events.ScheduledMaintenance.Action) == policy.Ignore && policy.Action(cfg.Events.StatusCheck.Action) == policy.Ignore {
		return
	}
	allowed, err := catalog.May(ctx, ec2.DescribeInstanceStatus)
	switch {
	case err != nil:
		c.Warn("right", "%s", err)
	case !allowed:
		c.Warn("right", "%s: refused; maintenance that is canceled or moved is drained for as it was announced, none is known that was announced before, and no status check that fails",
			ec2.DescribeInstanceStatus)
	default:
		c.OK("right", "%s", ec2.DescribeInstanceStatus)
	}
}

// hooks checks whether lifecycle hooks may be answered: those of a group that the cluster's nodes are in or, where none is
// known, of one that is made up. What there is to answer is left alone.
func (c *check) hooks(ctx context.Context, cfg config.Queue, account aws.Config, group string) {
	settings := hookSettings(cfg)
	told := asg.NewTold(asg.ToldOptions{AWS: account, Queue: resourceOf(cfg.Queue.URL, account.Region)}, settings)
	for _, p := range asg.ToldPermissions(settings) {
		allowed, err := told.May(ctx, p, group)
		switch {
		case err != nil:
			c.Warn("right", "%s", err)
			return // The others would take as long to say the same.
		case allowed && group == "":
			c.OK("right", "%s: not refused for an Auto Scaling group that there is not", p.Name)
		case allowed:
			c.OK("right", "%s for the Auto Scaling group %s", p.Name, group)
		case group == "":
			c.Warn("right", "%s: refused for an Auto Scaling group that there is not, as it is where only some groups are allowed; without it, %s", p.Name, p.Without)
		default:
			c.Warn("right", "%s: refused for the Auto Scaling group %s; %s", p.Name, group, p.Without)
		}
	}
	if group == "" {
		return
	}
	if settings.Complete {
		c.ours(ctx, told, group, false)
	}
	if cfg.Fleet.CompleteLaunches {
		c.ours(ctx, told, group, true)
	}
}

// ours says which of a group's hooks would be completed.
func (c *check) ours(ctx context.Context, told *asg.Told, group string, launch bool) {
	switch found, ours, err := told.Explain(ctx, group, launch); {
	case err != nil:
		c.Warn("hook", "%s", err)
	case ours:
		c.OK("hook", "%s", found)
	case found != "":
		c.Warn("hook", "%s", found)
	}
}
