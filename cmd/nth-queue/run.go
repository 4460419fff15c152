package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/logging"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/reload"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/notify"
	sqs "github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/systemd"
)

// commandRun is "nth-queue run".
func commandRun(ctx context.Context, args []string, to program.Streams) error {
	read, done, err := runSettings(args, to)
	if done || err != nil {
		return err
	}
	cfg, err := read()
	degraded, fatal := webhooks.Degraded(err)
	if fatal != nil {
		return fatal
	}
	hangups, deaf := reload.Hangups()
	defer deaf()
	ctx, stop := program.UntilSignal(ctx)
	defer stop()
	logger, err := logging.Begin("nth-queue", cfg.Log, to.Err)
	if err != nil {
		return err
	}
	log := logrus.NewEntry(logger)
	webhooks.SayDegraded(log, degraded)
	program.SpareMemory()
	manager := &systemd.Notifier{}
	again := &reload.Reloader[config.Queue]{
		Program: "nth-queue", Read: read, Judge: webhooks.Degraded, Keep: config.Queue.Telling, Service: manager, Log: log, Started: cfg, Current: cfg,
		Diff: config.DiffQueue, Late: late,
	}
	gate := drain.NewGate(evictionsAtOnce)
	return serve(ctx, cfg, degraded, log, manager, gate, func(parts adjustable) {
		parts.logger, parts.gate = logger, gate
		again.Apply = parts.use
		go again.Run(ctx, hangups)
	})
}

// serve wires the service and runs it until ctx ends. degraded is what is wrong with the settings; adjust gets the parts that
// follow them when they are there.
func serve(
	ctx context.Context, cfg config.Queue, degraded []string, log *logrus.Entry, manager *systemd.Notifier, gate *drain.Gate,
	adjust func(adjustable),
) error {
	version, _ := program.BuildVersion()
	meter := newMeter(cfg, log)
	client, leases, err := clients(ctx, cfg, meter.counted().Requested)
	if err != nil {
		return err
	}
	asked, err := awsConfig(ctx, cfg)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("asking for the host's name: %w", err)
	}
	catalog := ec2.New(ec2.Options{AWS: asked, Tag: cfg.Fleet.ManagedTag})
	notices := newNotices(ctx, cfg, notify.Identity{Client: client.Interface}, newTurns(gate.Quiet), meter, log)
	hooks := newHooks(cfg, asked, meter.counted(), log)
	nodes := fleet.New(fleet.Options{
		Client: client.Interface, Leases: leases.Interface, Host: host, Own: ownPod(), Policy: policyOf(cfg.Events), Drain: drainOptions(cfg, gate),
		Limits: fleet.Limits{Draining: cfg.Fleet.MaxDraining, Group: cfg.Fleet.MaxPerGroup, Label: cfg.Fleet.GroupLabel},
		Log:    log, DryRun: cfg.DryRun, LeaveUnknown: cfg.Fleet.Unknown == "leave", UncordonStarted: cfg.Fleet.UncordonStarted,
		Instances: catalog, ManagedOnly: cfg.Fleet.ManagedTag != "", Schedule: catalog, Impaired: cfg.Events.StatusCheck.After,
		OwnTag: strings.HasPrefix(cfg.Fleet.ManagedTag, ec2.ClusterTag), Cluster: clusterOf(cfg.Fleet),
		Hooks: hooks, CompleteLaunches: cfg.Fleet.CompleteLaunches, Taints: taintsOf(cfg.Fleet),
		DeleteNode: cfg.Fleet.DeleteNode,
		Listeners:  notices.of, Replace: hooks.told.Replace,
	})
	board := newBoard(cfg, version, client, manager, log)
	board.degrade(degraded)
	messages := sqs.New(sqs.Options{
		URL: cfg.Queue.URL, AWS: asked, Visibility: cfg.Queue.Visibility, Receivers: cfg.Queue.Receivers, Paused: nodes.Paused, DryRun: cfg.DryRun,
		Tell: meter.telling(teller(log)), Trouble: troubled(log, board.heard),
	})
	notices.nodes.ask = nodes.Describe
	board.fleet, board.queue, board.meter = nodes, messages, meter
	meter.judges(messages, nodes, board)
	log.WithField(systemd.FieldMessageID, systemd.Started).Infof("reading the queue %s for the cluster at %s%s",
		cfg.Queue.URL, client.Server, dryRun(cfg))
	manager.Ready()
	adjust(adjustable{fleet: nodes, hooks: hooks, notices: notices, board: board})
	told := notices.begin()
	shown := board.begin(ctx)
	var reading sync.WaitGroup
	nodes.Run(ctx, func() {
		board.known()
		reading.Go(func() { messages.Run(ctx, func(l *sqs.Lease) { nodes.Take(l.Notices, l.Receives, l) }) })
	})
	manager.Stopping()
	reading.Wait()
	shown()
	told()
	log.WithField(systemd.FieldMessageID, systemd.Stopping).Info("stopped; unfinished messages are back in the queue")
	return manager.Err()
}

func dryRun(cfg config.Queue) string {
	if cfg.DryRun {
		return ", as a dry run: nothing will be written to the cluster, and no message deleted"
	}
	return ""
}

// teller says what becomes of messages, as far as people want to know.
func teller(log *logrus.Entry) func(sqs.Report) {
	return func(r sqs.Report) {
		of := log.WithField("NTH_MESSAGE", r.Message)
		switch r.What {
		case sqs.Poisoned:
			of.WithField(systemd.FieldMessageID, systemd.MessagePoisoned).
				Errorf("unrecognized message, left to the dead-letter queue: %s", r.Why)
		case sqs.NotOurs:
			of.Infof("message concerns no node: %s", r.Why)
		case sqs.Lost:
			of.Infof("message may be visible to other consumers: %s", r.Why)
		case sqs.Received, sqs.Extended, sqs.Returned, sqs.Deleted:
			of.Debugf("a message was %s", r.What)
		}
	}
}

// troubled says when the queue cannot be read, and when it can be again.
func troubled(log *logrus.Entry, heard func(error)) func(error) {
	last := ""
	var mu sync.Mutex
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		heard(err)
		if err == nil {
			last = ""
			log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("receiving from the queue again")
			return
		}
		if text := err.Error(); last == "" {
			last = text
			log.WithField(systemd.FieldMessageID, systemd.SourceTrouble).Warnf("cannot receive from the queue: %s", text)
		}
	}
}
