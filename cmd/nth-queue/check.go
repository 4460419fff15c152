package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/text"
)

// runCheck is "nth-queue check": it adds its findings to the list, which prints them. The error ends the program with status 1 or 78.
func runCheck(ctx context.Context, list *checks.List, path string, post bool) error {
	c := &check{list}
	ctx, cancel := context.WithTimeout(ctx, checks.Limit)
	defer cancel()
	cfg, found, err := own.ReadAsService(path)
	degraded, fatal := settings.Degraded(err)
	if fatal != nil {
		return c.Wrong(fatal)
	}
	checks.Hush()
	c.settings(path, cfg)
	c.Degraded(degraded)
	c.Unit(found.Unit)
	c.Sources("identity", found.Identity)
	account, ok := c.credentials(ctx, cfg)
	if ok {
		c.queue(ctx, cfg, account)
	}
	nodes := c.cluster(ctx, cfg)
	if ok {
		c.services(ctx, cfg, account, nodes)
	}
	c.Webhook(ctx, cfg.Webhook, found.Unit.Find, found.Webhook, post, func(context.Context) string { return "" })
	const image = false // nth-queue has no check for the build of an image.
	c.Metrics(ctx, cfg.Metrics, image)
	return c.End()
}

// check is a run of "nth-queue check". Its methods add findings to the list. They change nothing in AWS or in the cluster.
type check struct{ *checks.List }

// settings reports where the settings come from, and whether they keep nth-queue from acting.
func (c *check) settings(path string, cfg config.Queue) {
	sources, _ := own.Place.Sources(path) // They have just been read.
	c.Settings(sources, own.Place.File)
	if err := own.Lacks(&cfg); err != nil {
		c.Fail("settings", "%s", err)
	}
	if cfg.DryRun {
		c.DryRun()
	}
}

// cluster checks the identity and its rights in the cluster, and whether Nodes name their instances. It returns the zero value if it cannot
// count the Nodes.
func (c *check) cluster(ctx context.Context, cfg config.Queue) fleet.NodeCount {
	client, err := connect(ctx, cfg, nil)
	if err != nil {
		c.Fail("identity", "%s", err)
		return fleet.NodeCount{}
	}
	user, err := fleet.User(ctx, client)
	if err != nil {
		c.Fail("identity", "%s in %s, for %s: %s", client.Credential(), client.Source, client.Server, err)
		return fleet.NodeCount{}
	}
	c.OK("identity", "%s, by %s in %s, for %s", user, client.Credential(), client.Source, client.Server)
	extras := fleet.Extras{
		Condition: cfg.Kubernetes.Condition, Events: cfg.Kubernetes.Events,
	}
	for _, right := range fleet.Rights(extras) {
		allowed, err := right.Allowed(ctx, client)
		if err != nil {
			c.Fail("right", "asking whether it may %s: %s", right, err)
			return fleet.NodeCount{}
		}
		c.Right(right.String(), right.For, right.Optional, allowed)
	}
	if err := fleet.TryLease(ctx, client); err != nil {
		c.Fail("lease", "making a Lease in the namespace %s, as a dry run: %s", fleet.LeaseNamespace, err)
	} else {
		c.OK("lease", "it can be made in the namespace %s", fleet.LeaseNamespace)
	}
	nodes, err := fleet.CountNodes(ctx, client)
	switch {
	case err != nil:
		c.Fail("nodes", "%s", err)
	case nodes.Silent > 0:
		c.Warn("nodes", "%d of %d do not name their instance (spec.providerID): they are found by their InternalIP, if it is unique in the region or tags name the cluster", nodes.Silent, nodes.All)
	case nodes.Elsewhere > 0:
		c.OK("nodes", "all %d name their instance, except %d that are not EC2 instances", nodes.All, nodes.Elsewhere)
	default:
		c.OK("nodes", "all %d name their instance", nodes.All)
	}
	return nodes
}

// queue checks that the queue exists and can be read, and how it is configured. It receives nothing.
func (c *check) queue(ctx context.Context, cfg config.Queue, account aws.Config) {
	q := sqs.New(sqs.Options{URL: cfg.Queue.URL, AWS: account, Visibility: visibility})
	found, allowed, err := q.Check(ctx)
	switch {
	case err != nil:
		c.Fail("queue", "%s", err)
		return
	case !allowed:
		c.Warn("queue", "%s: refused; only this check needs it, to read how the queue is set up", sqs.GetQueueAttributes)
	default:
		c.OK("queue", "%s waiting, %d in flight", text.Count(found.Visible, "message"), found.InFlight)
		c.retention(cfg, found)
		c.delivery(found)
	}
	for _, right := range sqs.Rights() {
		allowed, err := q.CheckPermission(ctx, right)
		switch {
		case err != nil:
			c.Fail("right", "%s", err)
		case allowed && right.Vague:
			c.OK("right", "%s: not refused, as far as can be seen without receiving a message", right.Name)
		default:
			c.Right(right.Name, right.For, false, allowed)
		}
	}
}

// longestRetention is how long SQS can keep a message at most.
const day, longestRetention = 24 * time.Hour, 14 * 24 * time.Hour

// retention checks how long the queue keeps a message, and how often SQS delivers it before it becomes a dead letter.
func (c *check) retention(cfg config.Queue, found sqs.Attributes) {
	waiting := time.Duration(0) // how long a message may wait in the queue; 0 if none has to
	if waits(cfg.Events.ScheduledMaintenance) {
		waiting = found.Retention
	}
	switch {
	case waiting > 0 && waiting < longestRetention:
		c.Warn("queue", "messages are kept for %s (MessageRetentionPeriod): a message about maintenance further ahead is lost; SQS can keep messages for %s",
			span(waiting), span(longestRetention))
	case found.Retention > 0:
		c.OK("queue", "messages are kept for %s", span(found.Retention))
	}
	if found.DeadLetters == "" {
		c.Warn("queue", "it has no dead-letter queue (RedrivePolicy): SQS delivers an unrecognized message again and again until its retention ends")
		return
	}
	least := fewestReceives
	if waiting > 0 {
		least = max(least, sqs.Receives(waiting))
	}
	if found.MaxReceives >= least {
		c.OK("queue", "after %s, a message goes to %s", text.Count(found.MaxReceives, "receipt"),
			found.DeadLetters[strings.LastIndexByte(found.DeadLetters, ':')+1:])
		return
	}
	waiters := ""
	if waiting > 0 {
		waiters = fmt.Sprintf(", and one that waits %s for maintenance is received %d times", span(waiting), sqs.Receives(waiting))
	}
	c.Warn("queue", "a message becomes a dead letter after %d receipts (maxReceiveCount); each new leader receives it once more%s: make it %d or more",
		found.MaxReceives, waiters, least)
}

// fewestReceives is how often a message should be received before it is given up: once by each process that takes over.
const fewestReceives = 10

// waits reports whether messages are kept in the queue until the time that they announce is near.
func waits(c config.ScheduledMaintenance) bool {
	acts := policy.Action(c.Action) == policy.Drain || policy.Action(c.Action) == policy.Cordon
	waiting := func(when string) bool { return when == string(policy.Lead) || when == string(policy.Window) }
	return acts && slices.ContainsFunc(slices.Collect(maps.Values(c.Codes)), waiting)
}

// delivery checks what keeps messages from getting into the queue, or delays them.
func (c *check) delivery(found sqs.Attributes) {
	if found.Delay > 0 {
		c.Warn("queue", "messages are delayed by %s (DelaySeconds), of the two minutes that a spot interruption leaves", found.Delay)
	}
	if found.FIFO {
		c.Warn("queue", "it is a FIFO queue: a message waits until the one before it is done, with its drain")
	}
	if !found.Policy {
		c.Warn("queue", "it has no policy: EventBridge cannot write into it, unless its rules have a role that may")
	}
	switch {
	case strings.HasSuffix(found.Key, "alias/aws/sqs"):
		c.Warn("queue", "messages are encrypted with %s, a key that EventBridge may not use: take SQS's own encryption, or a key of yours", found.Key)
	case found.Key != "":
		c.Warn("queue", "messages are encrypted with the KMS key %s; not tried: whether EventBridge may use it, and nth-queue (kms:Decrypt)", found.Key)
	}
}

// span formats a duration in days if it has whole ones, and otherwise to the minute.
func span(d time.Duration) string {
	switch {
	case d == day:
		return "1 day"
	case d%day == 0:
		return fmt.Sprintf("%d days", d/day)
	case d < time.Minute:
		return d.String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// credentialsLimit is how long credentials for AWS are looked for.
const credentialsLimit = 15 * time.Second

// credentials checks the region and the credentials for AWS. ok is false if the settings name no queue, or one of these is missing.
func (c *check) credentials(ctx context.Context, cfg config.Queue) (account aws.Config, ok bool) {
	if cfg.Queue.URL == "" { // settings has reported this.
		return aws.Config{}, false
	}
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
	c.OK("aws", "%s, with the access key %s from %s", account.Region, found.AccessKeyID, sourceOf(found))
	return account, true
}

// sourceOf says where credentials come from, in other words than the SDK's.
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

// services checks the rights in EC2 and, if the settings need them, in Auto Scaling. It also checks whether instances without a Node can be
// attributed to a cluster.
func (c *check) services(ctx context.Context, cfg config.Queue, account aws.Config, nodes fleet.NodeCount) {
	catalog := ec2.New(ec2.Options{AWS: account, Tag: cfg.Fleet.ManagedTag})
	switch {
	case cfg.Fleet.ManagedTag != "":
		c.mustDescribe(ctx, catalog, ec2.DescribeInstances, "to know which instances have the tag in fleet.managed_tag")
		c.mustDescribe(ctx, catalog, ec2.DescribeTags, "to know which of their groups have it")
	case nodes.Silent > 0:
		c.mustDescribe(ctx, catalog, ec2.DescribeInstances, "to find the nodes that do not name their instance")
	default:
		c.mayDescribe(ctx, catalog, ec2.DescribeInstances, withoutDescribe)
	}
	if policy.Action(cfg.Events.ScheduledMaintenance.Action) != policy.Ignore || policy.Action(cfg.Events.StatusCheck.Action) != policy.Ignore {
		c.mayDescribe(ctx, catalog, ec2.DescribeInstanceStatus, withoutSchedule)
	}
	group := ""
	if len(nodes.Instances) > 0 {
		if groups, clusters, err := catalog.Marks(ctx, nodes.Instances); err == nil { // Missing rights have been reported.
			c.owner(cfg.Fleet, clusters)
			group = strings.Join(groups[:min(len(groups), 1)], "") // the first group; "" if there is none
		}
	}
	if !hookSettings(cfg).Complete && !cfg.Fleet.CompleteLaunches {
		c.OK("hook", "lifecycle hooks are disabled by configuration: events.asg-termination, fleet.complete_launches")
		return
	}
	c.hooks(ctx, cfg, account, group)
}

// What nth-queue does without rights that it can do without.
const (
	// withoutOwner is for an instance whose cluster EC2 does not name.
	withoutOwner    = "messages about other clusters' instances are held until it is known that they have no Node here; with fleet.unknown = \"leave\" those about this cluster become dead letters"
	withoutDescribe = "a stop that is reported minutes late and the end of a Capacity Block would drain no node, an instance without one would hold up its group, and its cluster would be unknown: " + withoutOwner
	withoutSchedule = "canceled or moved maintenance still drains on its first date; earlier announcements and failed status checks are not seen"
)

// owner checks whether instances without a Node can be attributed to a cluster by their tags. names are the clusters in the tags of instances
// that have a Node.
func (c *check) owner(settings config.Fleet, names []string) {
	own, tagged := clusterOf(settings), strings.Join(names, ", ")
	switch {
	case own != "" && slices.Contains(names, own), own == "" && len(names) == 1:
		c.OK("cluster", "its instances have the tag %s%s", ec2.ClusterTag, cmp.Or(own, tagged))
	case own != "" && len(names) == 0:
		c.Warn("cluster", "it is %q by the settings, but the instances of its Nodes have no tag %s%s", own, ec2.ClusterTag, own)
	case own != "":
		c.Warn("cluster", "it is %q by the settings, but the tags %sNAME of its Nodes' instances name %s", own, ec2.ClusterTag, tagged)
	case len(names) == 0:
		c.Warn("cluster", "the instances of its Nodes have no tag %sNAME, so the cluster of an instance without a Node is unknown: %s", ec2.ClusterTag, withoutOwner)
	default:
		c.Warn("cluster", "the tags %sNAME of its Nodes' instances name %s: set fleet.cluster, or the cluster of other instances without a Node is unknown; %s",
			ec2.ClusterTag, tagged, withoutOwner)
	}
}

// mustDescribe checks a right in EC2 that nth-queue needs. why completes "it is needed".
func (c *check) mustDescribe(ctx context.Context, catalog *ec2.Catalog, right ec2.Right, why string) {
	allowed, err := catalog.CheckPermission(ctx, right)
	if err != nil {
		c.Fail("right", "%s", err)
		return
	}
	c.Right(string(right), why, false, allowed)
}

// mayDescribe checks a right in EC2 that nth-queue can do without. without says what it does then.
func (c *check) mayDescribe(ctx context.Context, catalog *ec2.Catalog, right ec2.Right, without string) {
	allowed, err := catalog.CheckPermission(ctx, right)
	switch {
	case err != nil:
		c.Warn("right", "%s", err)
	case !allowed:
		c.Warn("right", "%s: refused; %s", right, without)
	default:
		c.OK("right", "%s", right)
	}
}

// hooks checks whether nth-queue may hold and complete the lifecycle hooks of a group. If group is "", it tries a group that does not exist. It
// touches no actual lifecycle action.
func (c *check) hooks(ctx context.Context, cfg config.Queue, account aws.Config, group string) {
	settings := hookSettings(cfg)
	client := asg.NewHookClient(asg.HookClientOptions{AWS: account, Queue: resourceOf(cfg.Queue.URL, account.Region)}, settings)
	for _, p := range asg.Permissions(settings) {
		allowed, err := client.CheckPermission(ctx, p, group)
		switch {
		case err != nil:
			c.Warn("right", "%s", err)
			return // The others would take as long to say the same.
		case allowed && group == "":
			c.OK("right", "%s: not refused for an Auto Scaling group that does not exist", p.Name)
		case allowed:
			c.OK("right", "%s for the Auto Scaling group %s", p.Name, group)
		case group == "":
			c.Warn("right", "%s: refused for an Auto Scaling group that does not exist (a policy that names its groups refuses that, too); without the right, %s", p.Name, p.Without)
		default:
			c.Warn("right", "%s: refused for the Auto Scaling group %s; %s", p.Name, group, p.Without)
		}
	}
	if group == "" {
		return
	}
	const termination, launch = false, true
	if settings.Complete {
		c.completed(ctx, client, group, termination)
	}
	if cfg.Fleet.CompleteLaunches {
		c.completed(ctx, client, group, launch)
	}
}

// completed reports which of a group's hooks for launches, or else for terminations, nth-queue would complete. It reports nothing about a group
// without hooks for launches, which is usual.
func (c *check) completed(ctx context.Context, client *asg.HookClient, group string, launch bool) {
	switch finding, completes, err := client.Explain(ctx, group, launch); {
	case err != nil:
		c.Warn("hook", "%s", err)
	case completes:
		c.OK("hook", "%s", finding)
	case finding != "":
		c.Warn("hook", "%s", finding)
	}
}
