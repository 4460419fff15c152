package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// runDaemon makes the parts of the daemon and runs them until ctx ends. If ctx ends because the whole system stops, they run until the node is
// drained.
func (h hostInfo) runDaemon(ctx context.Context, d *daemon.Daemon[config.Config]) error {
	cfg, log, service := d.Config, d.Log, d.Service
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	var metadata *imds.Source // is set below, before the metrics ask for it
	meter := daemon.NewMetrics(&cfg.Common, log, metrics.Options{Stuck: func() error { return metadata.Stalled() }})
	file := record.NewStatusFile(cfg.RuntimeDirectory, func(err error) { log.Warn(err) })
	board := newStatusReporter(file, meter, d.Degraded, cfg)
	rules := policyOf(cfg)
	store, warning := record.Open(daemon.StateDirectory(&cfg.Common), bootID, booted())
	if warning != nil {
		log.WithField(systemd.FieldMessageID, systemd.StateTrouble).Error(warning)
	}
	options := metadataOptions(cfg, bootID, rules)
	// The record keeps over a restart that the instance was in service: only then does another target state mean a termination.
	options.WasInService, options.InService, options.TargetState = store.WasInService(), store.SetInService, board.setTarget
	options.Observe = func(p imds.Poll) { meter.Polled(p.Document, string(p.Result)) }
	if metadata, err = newSource(options); err != nil {
		return err
	}
	log.WithField(systemd.FieldMessageID, systemd.Started).Info(metadata.Polled())
	kubelet := h.newKubelet(cfg, meter.Requested)
	node := newLocalNode(kubelet, cfg, balancers(cfg, metadata), scripts{logind.Host(cfg.HostRoot)})
	stopLimit := unitStop
	if h.contained {
		stopLimit = containerStop
	}
	shutdown := newShutdown(cfg, stopLimit, bootID, log, board.setNoNotice)
	defer shutdown.keys.Close()
	hooks := newHooks(metadata, cfg, board, meter, log)
	listeners, work := newListeners(cfg, daemon.NewWebhook(d.Webhook, cfg.DryRun, log, meter), kubelet, store, metadata, board.alive, meter, log)
	loop := agent.New(agent.Config{
		// hooks announces nothing: it is among the sources so that the agent runs it.
		Sources:   append(shutdown.sources(), metadata, hooks, drainRequests{daemon.StateDirectory(&cfg.Common), func(why string) { board.setOff("nth drain", why) }}),
		Node:      node,
		Identity:  warmIdentity{kubelet: kubelet, found: board.setIdentity},
		Record:    store,
		Service:   service,
		Policy:    rules,
		Unwatched: unwatched(rules, shutdown.source != nil),
		BootID:    bootID,
		Now:       store.Now,
		Log:       log,
		Settled:   func(ev event.Event, outcome event.Outcome) { shutdown.settled(ev, outcome); hooks.Settled(ev, outcome) },
		Reboot:    logind.Host(cfg.HostRoot).Reboot,
		DryRun:    cfg.DryRun,
		Board:     board,
		Listeners: listeners,
	})
	running, stop := shutdown.outlive(ctx)
	defer stop()
	daemon.RunWith(running, loop.Run, work...)
	return nil
}

// lockDaemon makes this process the only daemon on this machine until unlock is called. It returns an error if another daemon runs, but not if
// the lock cannot be used. A dry run may run at the same time as the service, and takes no lock.
func lockDaemon(cfg config.Config, log *logrus.Entry) (unlock func(), err error) {
	if cfg.DryRun {
		return func() {}, nil
	}
	lock, err := record.Lock(cfg.RuntimeDirectory)
	if running, ok := errors.AsType[record.RunningError](err); ok {
		return nil, running
	}
	if err != nil { // A disk that is full or read-only must not keep the node from being drained.
		log.WithField(systemd.FieldMessageID, systemd.StateTrouble).Warnf("%s; nth runs without the lock, so a second nth could start on this machine", err)
		return func() {}, nil
	}
	return func() { _ = lock.Close() }, nil
}

// booted returns when this boot began, by the wall clock as it is set now.
func booted() time.Time { return time.Now().Add(-record.Uptime()) }

// metadataOptions returns how the metadata service is polled, by the settings. Only documents of kinds that the rules do not ignore are polled.
func metadataOptions(cfg config.Config, bootID string, rules policy.Settings) imds.Options {
	return imds.Options{
		Endpoint: cfg.IMDS.Endpoint,
		Interval: cfg.IMDS.Interval,
		Kinds:    watched(rules),
		BootID:   bootID,
	}
}

// newSource returns a metadata source. It takes the endpoint mode, IPv4 or IPv6, from the environment variable that AWS's SDKs have for it.
func newSource(opts imds.Options) (*imds.Source, error) {
	opts.EndpointMode = strings.TrimSpace(os.Getenv(imds.EndpointModeVariable))
	return imds.New(opts)
}

// unwatched lists the kinds that no source looks for: those that the settings ignore, and the local ones if no source asks logind. shutdowns says
// that a source does.
func unwatched(rules policy.Settings, shutdowns bool) []event.Kind {
	kinds := watched(rules)
	return slices.DeleteFunc(event.Kinds(), func(kind event.Kind) bool {
		return slices.Contains(kinds, kind) && (!kind.Local() || shutdowns)
	})
}

// watched lists the kinds that the settings do not ignore. policyOf has a rule for each kind.
func watched(rules policy.Settings) []event.Kind {
	kinds := []event.Kind{}
	for _, kind := range event.Kinds() {
		if rules[kind].Action != policy.Ignore {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// runCommand returns "nth run".
func (h hostInfo) runCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "run", Short: "watch for interruptions and drain this node", Args: cobra.NoArgs,
		Long: `Watches what EC2 announces for this machine, and cordons and drains its Kubernetes node in time.
Runs until it gets SIGTERM or SIGINT; a second one ends it at once.`,
	}
	read := h.settings().RunFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return daemon.Run(cmd.Context(), "nth", read, cmd.ErrOrStderr(), func(ctx context.Context, d *daemon.Daemon[config.Config]) error {
			unlock, err := lockDaemon(d.Config, d.Log)
			if err != nil {
				return err
			}
			defer unlock()
			return h.runDaemon(ctx, d)
		})
	}
	return cmd
}

// policyOf turns the settings into the rules for all kinds of events. A deadline is hard if EC2 or the system takes the machine then in any case.
func policyOf(c config.Config) policy.Settings {
	rules := daemon.Rules(c.Events.Announced)
	for kind, rule := range rules {
		rule.WithdrawnAfter = c.IMDS.WithdrawnAfter
		if kind == event.ScheduledMaintenance { // EC2's history of maintenance lags by an hour. Until it has the event, the event only seems withdrawn.
			rule.WithdrawnAfter *= 120
			if c.Events.ScheduledMaintenance.Finish == "reboot" { // EC2 keeps an instance-reboot if its user reboots the machine.
				rule.Reboot = []string{"system-reboot"}
			}
		}
		rules[kind] = rule
	}
	rules[event.Shutdown] = policy.Rule{Action: policy.Action(c.Events.Shutdown.Action), Hard: true}
	rules[event.Hibernation] = policy.Rule{Action: policy.Action(c.Events.Hibernation.Action), Hard: true}
	rules[event.Manual] = policy.Rule{Action: policy.Drain}
	return rules
}
