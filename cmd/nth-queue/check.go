package main

import (
	"cmp"
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/sqs"
)

// runCheck makes all checks of "nth-queue check", and adds their findings to the list. Without credentials for AWS, it checks only the rest.
func runCheck(ctx context.Context, list *checks.List, cfg config.Queue) {
	c := &check{list}
	account, hasAccount := c.credentials(ctx, cfg)
	if hasAccount {
		c.queue(ctx, cfg, account)
	}
	nodes := c.cluster(ctx, cfg)
	if hasAccount {
		c.services(ctx, cfg, account, nodes)
	}
	c.Webhook(ctx, cfg.Webhook, "")
}

// check is a run of "nth-queue check". Its methods add findings to the list. They change nothing in AWS or in the cluster.
type check struct{ *checks.List }

// cluster checks the identity and its rights in the cluster, and whether Nodes name their instances. It returns the count of Nodes, which is the
// zero value if a check before that fails, or if they cannot be listed.
func (c *check) cluster(ctx context.Context, cfg config.Queue) fleet.NodeCount {
	client, err := connect(cfg, nil)
	if err != nil {
		c.Fail("identity", "%s", err)
		return fleet.NodeCount{}
	}
	user, err := fleet.User(ctx, client)
	if err != nil {
		c.Fail("identity", "%s in %s, for %s: %s", client.Credential, client.Source, client.Server, err)
		return fleet.NodeCount{}
	}
	c.OK("identity", "%s, by %s in %s, for %s", cmp.Or(user, "a user whom this API server does not name"), client.Credential, client.Source, client.Server)
	for _, right := range fleet.Rights(cfg.Kubernetes.Condition, cfg.Kubernetes.Events) {
		allowed, err := right.Allowed(ctx, client)
		if err != nil {
			c.Fail("right", "asking the API server whether nth-queue may %s: %s", right, err)
			return fleet.NodeCount{}
		}
		c.Right(right.String(), right.For, right.Optional, allowed)
	}
	nodes, err := fleet.CountNodes(ctx, client)
	switch {
	case err != nil:
		c.Fail("nodes", "%s", err)
	case nodes.Silent > 0:
		c.Warn("nodes", "%d of %d Nodes do not name their instance (spec.providerID): they are found by their InternalIP, if it is unique in the region or tags name the cluster", nodes.Silent, nodes.All)
	case nodes.Elsewhere > 0:
		c.OK("nodes", "all %d Nodes name their instance, except %d that are not EC2 instances", nodes.All, nodes.Elsewhere)
	default:
		c.OK("nodes", "all %d Nodes name their instance", nodes.All)
	}
	return nodes
}

// queue checks the attributes of the queue, and the right to receive, change and delete its messages. It receives none.
func (c *check) queue(ctx context.Context, cfg config.Queue, account aws.Config) {
	q := sqs.New(sqs.Options{URL: cfg.Queue.URL, AWS: account, Visibility: visibility})
	messages, warnings, err := q.Setup(ctx)
	switch {
	case role.Refused(err): // The service itself never reads the attributes.
		c.Warn("queue", "%s; only this check needs it", err)
	case err != nil:
		c.Fail("queue", "%s", err)
		return
	default:
		c.OK("queue", "%s", messages)
	}
	for _, warning := range warnings {
		c.Warn("queue", "%s", warning)
	}
	const needed = true
	c.Rights(ctx, "right", needed, q.Rights())
}

// credentialsLimit is how long credentials for AWS are looked for.
const credentialsLimit = 15 * time.Second

// credentials checks the region and the credentials for AWS. ok is false if one of these is missing.
func (c *check) credentials(ctx context.Context, cfg config.Queue) (account aws.Config, ok bool) {
	account, err := awsConfig(ctx, cfg)
	switch {
	case err != nil:
		c.Fail("aws", "%s", err)
		return aws.Config{}, false
	case account.Region == "":
		c.Fail("aws", "neither the queue's URL nor the environment names a region: set AWS_REGION")
		return aws.Config{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, credentialsLimit)
	defer cancel()
	found, err := account.Credentials.Retrieve(ctx)
	if err != nil {
		c.Fail("aws", "looking for credentials: %s", err)
		return aws.Config{}, false
	}
	c.OK("aws", "%s, with the access key %s from %s", account.Region, found.AccessKeyID, found.Source)
	return account, true
}

// services checks the rights in EC2. If the settings ask for lifecycle hooks, it also checks the rights in Auto Scaling and the hooks, with the
// group of one of the Nodes' instances.
func (c *check) services(ctx context.Context, cfg config.Queue, account aws.Config, nodes fleet.NodeCount) {
	catalog := ec2.New(ec2.Options{AWS: account, Tag: cfg.Fleet.ManagedTag})
	const needed, optional = true, false
	must, may := catalog.Rights()
	c.Rights(ctx, "right", needed, must)
	c.Rights(ctx, "right", optional, may)
	if len(nodes.Instances) > 0 {
		finish := fleet.Finish(cfg.Events.ScheduledMaintenance.Finish)
		c.Rights(ctx, "right", optional, catalog.ChangeRights(nodes.Instances[0], finish.Requests()...))
	}
	hooks := hookSettings(cfg)
	if !hooks.Complete && !cfg.Fleet.CompleteLaunches {
		c.OK("hook", "lifecycle hooks are disabled by configuration: events.asg-termination, fleet.complete_launches")
		return
	}
	group := catalog.GroupOf(ctx, nodes.Instances)
	if group == "" {
		c.OK("hook", "not tried: no Node is known whose instance is in an Auto Scaling group")
		return
	}
	client := asg.NewHookClient(asg.HookClientOptions{AWS: account, Queue: sqs.ParseURL(cfg.Queue.URL).Resource(account.Region)}, hooks)
	c.Rights(ctx, "hook", optional, client.Rights(group))
	const termination, launch = false, true
	if hooks.Complete {
		c.reportHooks(ctx, client, group, termination)
	}
	if cfg.Fleet.CompleteLaunches {
		c.reportHooks(ctx, client, group, launch)
	}
}

// reportHooks reports which of a group's lifecycle hooks nth-queue would complete: those for launches, or for terminations if launch is false.
func (c *check) reportHooks(ctx context.Context, client *asg.HookClient, group string, launch bool) {
	switch finding, completes, err := client.Explain(ctx, group, launch); {
	case err != nil:
		c.Warn("hook", "%s", err)
	case completes, launch: // Most groups have no hook for launches, so to complete none is as it should be.
		c.OK("hook", "%s", finding)
	default:
		c.Warn("hook", "%s", finding)
	}
}
