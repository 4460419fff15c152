package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/agent"
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
func runDaemon(ctx context.Context, cfg config.Config, stderr io.Writer) error {
	log := logrus.NewEntry(newLogger(cfg.Log, stderr))
	quietLibraries(log)
	if err := hurryLibraries(); err != nil {
		return fmt.Errorf("setting client-go's limits: %w", err)
	}
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	store, warnings := record.Open(recordDirectory(cfg), bootID)
	for _, w := range warnings {
		log.WithField(systemd.FieldMessageID, systemd.StateTrouble).Error(w)
	}
	rules := policyOf(cfg.Events)
	metadata, err := imdsSource(cfg, bootID, rules, log)
	if err != nil {
		return err
	}
	shutdown := newShutdown(cfg.Events.Shutdown, bootID, log)
	version, _ := buildVersion()
	borrowed := kubelet.New(kubelet.Options{Kubeconfig: cfg.Kubernetes.Kubeconfig, UserAgent: "nth/" + version})
	service := &systemd.Notifier{}
	daemon := agent.New(agent.Config{
		Sources:  append(shutdown.sources(), metadata),
		Node:     &self{kubelet: borrowed, options: drainOptions(cfg.Drain), dryRun: cfg.DryRun},
		Identity: warm{kubelet: borrowed, every: cfg.Kubernetes.KeepWarm},
		Record:   store,
		Service:  service,
		Policy:   rules,
		BootID:   bootID,
		Log:      log,
		Beat:     service.WatchdogInterval() / 3,
		Settled:  shutdown.settled,
		DryRun:   cfg.DryRun,
	})
	running, stop := shutdown.outlive(ctx)
	defer stop()
	return errors.Join(daemon.Run(running), service.Err())
}

// recordDirectory is where the record lies. A dry run has one of its own: what was only talked about must not count as
// done when it becomes serious.
func recordDirectory(cfg config.Config) string {
	if cfg.DryRun {
		return filepath.Join(cfg.StateDirectory, "dry-run")
	}
	return cfg.StateDirectory
}

func imdsSource(cfg config.Config, bootID string, rules policy.Settings, log *logrus.Entry) (agent.Source, error) {
	source, err := imds.New(imds.Options{
		Endpoint:            cfg.IMDS.Endpoint,
		UrgentInterval:      cfg.IMDS.UrgentInterval,
		RebalanceInterval:   cfg.IMDS.RebalanceInterval,
		MaintenanceInterval: cfg.IMDS.MaintenanceInterval,
		LifeCycles:          cfg.IMDS.LifeCycles,
		Kinds:               watched(rules),
		BootID:              bootID,
		Told: func(scope imds.Scope) {
			log.WithField(systemd.FieldMessageID, systemd.Started).Info(scope)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the metadata source: %w", err)
	}
	return source, nil
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
