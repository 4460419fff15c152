package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/cmd/internal/standing"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/queue"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// commandStatus is "nth-queue status".
func commandStatus(_ context.Context, args []string, to program.Streams) error {
	var path string
	var asJSON bool
	done, err := program.Parse("nth-queue status", statusUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&asJSON, "json", false, "")
	})
	if done || err != nil {
		return err
	}
	cfg, err := effectiveConfig(path)
	if err != nil {
		return err
	}
	found := standing.Examine("nth-queue", cfg.RuntimeDirectory, time.Now())
	if asJSON {
		err = standing.WriteJSON(to.Out, found)
	} else {
		err = standing.WriteText(to.Out, found)
	}
	if err == nil && found.State != standing.Running {
		err = program.ErrTold
	}
	return err
}

// board keeps the status current: the sentence that "systemctl status" shows, and the file for "nth-queue status".
type board struct {
	file     *record.Board
	manager  *systemd.Notifier
	fleet    *fleet.Fleet
	meter    *meter
	queue    *queue.Queue
	began    time.Time
	version  string
	dryRun   bool
	server   string
	identity string

	mu      sync.Mutex
	ready   bool
	trouble string // why the queue cannot be read; empty if it can
	since   time.Time
}

// glance is how often the status is looked at, and refresh how often it is written without a change.
const glance, refresh = time.Second, 10

// begin shows how things stand from now on. The function that it returns waits, once ctx has ended, for the last word.
func (b *board) begin(ctx context.Context) (wait func()) {
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var writer, shower sync.WaitGroup
	writer.Go(func() { b.file.Run(writing) })
	shower.Go(func() { b.run(ctx) })
	return func() {
		shower.Wait()
		stop()
		writer.Wait()
	}
}

// run shows how things stand until ctx ends, and then that the process has stopped.
func (b *board) run(ctx context.Context) {
	ticks := time.NewTicker(glance)
	defer ticks.Stop()
	last := ""
	for n := 0; ; n++ {
		status := b.status()
		b.manager.Status("%s", status.Sentence)
		b.meter.show(status, b.fleet.Standing(), b.queue.Standing())
		if status.Sentence != last || n%refresh == 0 {
			b.file.Show(status)
		}
		last = status.Sentence
		select {
		case <-ctx.Done():
			status.Stopped = time.Now()
			b.file.Show(status)
			return
		case <-ticks.C:
		}
	}
}

func (b *board) status() record.Status {
	stand, held := b.fleet.Standing(), b.queue.Held()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := record.Status{
		Version: record.StatusVersion, Program: b.version, PID: os.Getpid(), Started: b.began, Updated: time.Now().Round(0),
		DryRun: b.dryRun, Identity: record.IdentityStatus{Credential: b.identity, Source: "the settings", Server: b.server},
		Events: stand.Events, Documents: []record.DocumentStatus{}, Off: []record.OffStatus{},
	}
	switch {
	case !b.ready:
		s.Sentence = "waiting for the API server to tell of the nodes"
	case stand.Draining+stand.Waiting > 0:
		s.Sentence = fmt.Sprintf("draining %d nodes, %d wait; %d messages are being worked on", stand.Draining, stand.Waiting, held)
	default:
		s.Sentence = fmt.Sprintf("reading the queue for %d nodes; nothing is announced", stand.Nodes)
	}
	if b.trouble != "" {
		s.Sentence += fmt.Sprintf("; the queue cannot be read since %s", b.since.Format("15:04:05"))
		s.Documents = append(s.Documents, record.DocumentStatus{Kind: "queue", Trouble: b.trouble, Since: b.since.Round(0)})
	}
	if b.dryRun {
		s.Sentence += " (dry run)"
		s.Off = append(s.Off, record.OffStatus{What: "writing to the cluster, and deleting messages", Why: "this is a dry run"})
	}
	return s
}

// known notes that the nodes are known.
func (b *board) known() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = true
}

// heard notes whether the queue can be read.
func (b *board) heard(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		b.trouble = ""
	case b.trouble == "":
		b.trouble, b.since = err.Error(), time.Now()
	}
}

// newBoard returns the board of a process that begins now.
func newBoard(cfg config.Queue, version, server string, manager *systemd.Notifier, trouble func(error)) *board {
	credential := "the kubeconfig " + cfg.Kubernetes.Kubeconfig
	if cfg.Kubernetes.Kubeconfig == "" {
		credential = "the pod's service account"
	}
	return &board{
		file: record.NewBoard(cfg.RuntimeDirectory, trouble), manager: manager, began: time.Now().Round(0),
		version: version, dryRun: cfg.DryRun, server: server, identity: credential,
	}
}
