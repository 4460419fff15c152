package main

import (
	"context"
	"flag"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
)

// commandCheck is "nth-queue check".
func commandCheck(ctx context.Context, args []string, to program.Streams) error {
	var path string
	var post bool
	done, err := program.Parse("nth-queue check", checkUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&post, "webhook", false, "")
	})
	if done || err != nil {
		return err
	}
	c := &check{checks.For("nth-queue", to.Out)}
	ctx, cancel := context.WithTimeout(ctx, checks.Limit)
	defer cancel()
	cfg, looked, err := configBeside(ctx, path)
	degraded, fatal := webhooks.Degraded(err)
	if fatal != nil {
		return c.Wrong(fatal)
	}
	if err := checks.Hush(); err != nil {
		return err
	}
	c.settings(path, cfg)
	c.Degraded(degraded)
	c.Unit(looked.unit)
	c.Sources("identity", looked.kubeconfig)
	account, known := c.credentials(ctx, cfg)
	if known {
		c.queue(ctx, cfg, account)
	}
	nodes := c.cluster(ctx, cfg)
	if known {
		c.services(ctx, cfg, account, nodes)
	}
	c.Webhook(ctx, cfg.Webhook, looked.unit.Find, looked.webhook, post, func(context.Context) string { return "unknown" })
	c.Metrics(ctx, cfg.Metrics, false)
	return c.End()
}

// check finds out whether nth-queue can do its work here. It changes nothing in AWS or in the cluster.
type check struct{ *checks.List }

func (c *check) settings(path string, cfg config.Queue) {
	sources, _ := config.QueueSources(path) // They have just been read.
	c.Settings(sources, config.QueueFile)
	if cfg.Queue.URL == "" {
		c.Fail("settings", "queue.url is not set")
	}
	if cfg.DryRun {
		c.DryRun()
	}
}

// cluster checks the identity, what it may do, and whether instances can be told from nodes.
func (c *check) cluster(ctx context.Context, cfg config.Queue) fleet.Census {
	client, err := connect(ctx, cfg, nil)
	if err != nil {
		c.Fail("identity", "%s", err)
		return fleet.Census{}
	}
	user, err := fleet.User(ctx, client)
	if err != nil {
		c.Fail("identity", "%s in %s, for %s: %s", client.Credential, client.Source, client.Server, err)
		return fleet.Census{}
	}
	c.OK("identity", "%s, by %s in %s, for %s", user, client.Proof(), client.Source, client.Server)
	extras := fleet.Extras{
		Condition: cfg.Kubernetes.Condition || cfg.Kubernetes.LifecycleConditions, Events: cfg.Kubernetes.Events,
		Volumes: cfg.Drain.VolumeWait > 0, Delete: cfg.Fleet.DeleteNode,
		Restart: cfg.Fleet.RestartWait > 0,
	}
	for _, right := range fleet.Rights(extras) {
		allowed, err := fleet.May(ctx, client, right)
		if err != nil {
			c.Fail("right", "%s", err)
			return fleet.Census{}
		}
		c.Right(right.String(), right.For, right.Optional, allowed)
	}
	if err := fleet.TryLease(ctx, client); err != nil {
		c.Fail("lease", "making a Lease in the namespace %s, as a dry run: %s", fleet.LeaseNamespace, err)
	} else {
		c.OK("lease", "it can be made in the namespace %s", fleet.LeaseNamespace)
	}
	nodes, err := fleet.Count(ctx, client)
	switch {
	case err != nil:
		c.Fail("nodes", "%s", err)
	case nodes.Anonymous > 0:
		c.Warn("nodes", "%d of %d do not tell their instance (spec.providerID): EC2 is asked for its private DNS name", nodes.Anonymous, nodes.All)
	case nodes.Elsewhere > 0:
		c.OK("nodes", "all %d tell their instance, or that they are none of EC2's, as %d do", nodes.All, nodes.Elsewhere)
	default:
		c.OK("nodes", "all %d tell their instance", nodes.All)
	}
	return nodes
}
