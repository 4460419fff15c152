package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// runDaemon wires the daemon and runs it until ctx ends; then, if it is the whole system that stops, until the node is
// drained.
func (s hostInfo) runDaemon(ctx context.Context, d *daemon.Daemon[config.Config, *config.Config], stderr io.Writer) error {
	cfg, log, service := d.Config, d.Log, d.Service
	pulse := newVigil(service)
	defer pulse.begin(ctx, log, stderr)()
	d.SayDegraded()
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	file := record.NewStatusFile(cfg.RuntimeDirectory, func(err error) { log.Warn(err) })
	meter := newMeter(cfg, log)
	alive := &watching{statusWriter: meter.both(file)}
	board := newStatusReporter(alive, meter.troubles, d.Degraded, cfg)
	rules := policyOf(cfg.Events)
	ends := &reservationEnd{board: board}
	book := openRecord(cfg, bootID, log)
	metadata, err := imdsSource(cfg, bootID, rules, book, log, board, meter, ends.told)
	if err != nil {
		return err
	}
	shutdown := newShutdown(ctx, cfg, s.system(cfg).in(bootID, book.Entries()), log, board.hearing, service)
	identity := s.identityOptions(cfg, metadata.Document)
	identity.Requested = meter.counted().Requested
	borrowed := kubelet.New(identity)
	node := newLocalNode(borrowed, cfg, balancers(cfg, metadata), s.scripts(cfg))
	hooks := newHooks(metadata, cfg, book, board, meter.counted(), log)
	alive.follow(metadata)
	notices := newNotices(cfg, listenerDeps{borrowed, book, &machine{ask: metadata.Instance}, alive.alive, meter.counted(), log})
	meter.join(notices, metadata, node)
	watcher := agent.New(agent.Config{
		Sources:   append(ends.sources(cfg, rules, metadata), append(shutdown.sources(), hooks)...),
		Node:      node,
		Identity:  warmIdentity{kubelet: borrowed, every: cfg.Kubernetes.KeepWarm, found: board.identified},
		Record:    book,
		Service:   pulse,
		Policy:    rules,
		Unwatched: unwatched(rules, shutdown.source != nil),
		BootID:    bootID,
		Log:       log,
		Beat:      service.WatchdogInterval() / 3,
		Settled:   func(ev event.Event, outcome event.Outcome) { shutdown.settled(ev, outcome); hooks.Settled(ev, outcome) },
		DryRun:    cfg.DryRun,
		Board:     board,
		Listeners: notices.listeners,
	})
	running, stop := shutdown.outlive(ctx)
	defer stop()
	defer shutdown.listen(running)()
	parts := adjustable{node, board, shutdown, hooks, notices, watcher}
	go d.Reload(running, late, parts.use)
	return errors.Join(shown(running, file, notices.around(watcher.Run)), service.Err())
}

// adjustable are the parts of the daemon that follow the settings while they run.
type adjustable struct {
	node    *localNode
	board   *statusReporter
	down    *shutdown
	hooks   *asg.Keeper
	notices *notices
	agent   *agent.Agent
}

// use puts settings into effect for what begins from now on. degraded is what is wrong with those that were read.
func (a adjustable) use(cfg config.Config, degraded []string) {
	rules := policyOf(cfg.Events)
	a.node.use(daemon.DrainOptions(cfg.Drain))
	a.board.setIgnored(rules)
	a.board.degrade(degraded)
	a.down.use(cfg)
	a.hooks.Use(daemon.Hooks(cfg.Events.ASGTermination))
	a.notices.use(rules)
	a.notices.reposted(cfg)
	a.agent.SetPolicy(rules)
}

// shown runs the daemon while its status is being written, to the last word.
func shown(ctx context.Context, file *record.StatusFile, run func(context.Context) error) error {
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var written sync.WaitGroup
	written.Go(func() { file.Run(writing) })
	defer written.Wait()
	defer stop()
	return run(ctx)
}

// openRecord opens the record, and says what is wrong with it.
func openRecord(cfg config.Config, bootID string, log *logrus.Entry) *record.Store {
	store, warnings := record.Open(daemon.StateDirectory(&cfg.Common), bootID)
	daemon.TellStateTrouble(log, warnings)
	return store
}

func imdsSource(
	cfg config.Config, bootID string, rules policy.Settings, book *record.Store, log *logrus.Entry, board *statusReporter, meter *meter, told func(imds.Scope),
) (*imds.Source, error) {
	opts := metadataOptions(cfg, bootID, rules)
	opts.Told = func(scope imds.Scope) {
		board.scoped(scope)
		told(scope)
		log.WithField(systemd.FieldMessageID, systemd.Started).Info(scope)
	}
	follow(&opts, book, board, log)
	meter.ask(&opts)
	return newSource(opts)
}

// metadataOptions say what the settings ask for of the metadata service.
func metadataOptions(cfg config.Config, bootID string, rules policy.Settings) imds.Options {
	return imds.Options{
		Endpoint:            cfg.IMDS.Endpoint,
		UrgentInterval:      cfg.IMDS.UrgentInterval,
		RebalanceInterval:   cfg.IMDS.RebalanceInterval,
		MaintenanceInterval: cfg.IMDS.MaintenanceInterval,
		LifeCycles:          cfg.IMDS.LifeCycles,
		Kinds:               watched(rules),
		BootID:              bootID,
	}
}

// newSource makes a metadata source that asks at the address which AWS's own programs are told to use.
func newSource(opts imds.Options) (*imds.Source, error) {
	opts.EndpointMode = strings.TrimSpace(os.Getenv(imds.EndpointModeVariable))
	source, err := imds.New(opts)
	if err != nil {
		return nil, program.ConfigError{Fault: fmt.Errorf("setting up the metadata source: %w", err)}
	}
	return source, nil
}

// unwatched lists the kinds that nobody looks for: those that were ignored when the daemon started, and shutdowns where they
// cannot be heard of.
func unwatched(rules policy.Settings, shutdowns bool) []event.Kind {
	heard := watched(rules)
	return slices.DeleteFunc(event.Kinds(), func(kind event.Kind) bool {
		return slices.Contains(heard, kind) && (!kind.Local() || shutdowns)
	})
}

// watched lists the kinds that are not ignored.
func watched(rules policy.Settings) []event.Kind {
	kinds := []event.Kind{}
	for _, kind := range event.Kinds() {
		if rules[kind].Action != policy.Ignore {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// commandRun is "nth run".
func (s hostInfo) commandRun(ctx context.Context, args []string, to program.Streams) error {
	read, done, err := s.settings().ParseRun(runUsage, args, to)
	if done || err != nil {
		return err
	}
	if s.contained {
		return supervise(args, to)
	}
	return s.watch(ctx, read, to)
}

// commandUnderParent is "nth run" in a host container, below the parent that starts it again.
func (s hostInfo) commandUnderParent(ctx context.Context, args []string, to program.Streams) error {
	read, done, err := s.settings().ParseRun(runUsage, args, to)
	if done || err != nil {
		return err
	}
	if err := s.watch(ctx, read, to); err != nil {
		return complainContained(to.Out, err)
	}
	return nil
}

// watch runs the daemon with the settings that read reads, until a signal asks it to stop.
func (s hostInfo) watch(ctx context.Context, read func() (config.Config, error), to program.Streams) error {
	stream := func(cfg config.Log) io.Writer { return logStream(cfg, to) }
	return daemon.Run(ctx, "nth", read, stream, func(ctx context.Context, d *daemon.Daemon[config.Config, *config.Config]) error {
		return s.runDaemon(ctx, d, stream(d.Config.Log))
	})
}

// late tells whether a setting, as now has it, takes effect at the next start only.
func late(name string, started, now config.Config) bool {
	switch {
	case name == "events.shutdown.margin":
		return true // logind is watched with it
	case name == "log.level", strings.HasPrefix(name, "drain."), strings.HasPrefix(name, "webhook."):
		return false
	case strings.HasPrefix(name, "events."):
		// What is ignored is not asked for.
		before, after := policyOf(started.Events), policyOf(now.Events)
		kind := kindOf(name)
		return strings.HasSuffix(name, ".action") && before[kind].Action == policy.Ignore && after[kind].Action != policy.Ignore
	}
	return true
}

// kindOf is the kind whose table a setting stands in.
func kindOf(name string) event.Kind {
	table, _, _ := strings.Cut(strings.TrimPrefix(name, "events."), ".")
	return event.Kind(table)
}

// policyOf turns the settings into the rules of the policy. Which deadlines are hard is not a setting where EC2 or the
// system take the machine whatever anybody says.
func policyOf(c config.Events) policy.Settings {
	rules := daemon.Rules(c.Announced)
	rules[event.Shutdown] = policy.Rule{Action: policy.Action(c.Shutdown.Action), Hard: true}
	rules[event.Hibernation] = policy.Rule{Action: policy.Action(c.Hibernation.Action), Hard: true}
	rules[event.ReservationEnd] = policy.Rule{
		Action:         policy.Action(c.ReservationEnd.Action),
		Lead:           c.ReservationEnd.Lead,
		Hard:           true,
		Budget:         daemon.SpotNotice, // which is also that of an interruptible reservation
		WithdrawnAfter: c.ReservationEnd.WithdrawnAfter,
	}
	return rules
}
