package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// drainCommand returns "nth drain".
func (h hostInfo) drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain", Short: "drain this node now, or undo that",
		Long: `Asks the service to cordon and drain this node, for operators and for what patches machines, and waits until
that is done. It respects disruption budgets to the end, and deletes no pod. The node stays cordoned, also over
reboots, until --undo. The exit status is 0 if the node is drained, and 1 if not: its time was over, somebody
uncordoned the node or opted it out, or the service does not run. It needs root's rights.`,
	}
	path := h.settings().ConfigFlag(cmd)
	undo := cmd.Flags().Bool("undo", false, `end what "nth drain" has asked for, and wait until the node is uncordoned, unless others need it cordoned`)
	dryRun := cmd.Flags().Bool("dry-run", false, "show the pods that would have to go, and change nothing")
	cmd.MarkFlagsMutuallyExclusive("undo", "dry-run")
	limit := cmd.Flags().Duration("deadline", 10*time.Minute, "give up after so long")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *limit <= 0 {
			return errors.New("--deadline must be a duration such as 90s or 10m")
		}
		return cobra.NoArgs(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		ctx, stop := daemon.UntilSignal(cmd.Context())
		defer stop()
		if *dryRun {
			return h.planDrain(ctx, *path, *limit, cmd.OutOrStdout())
		}
		d := manualDrain{
			out: cmd.OutOrStdout(), state: h.settings().StateDirectory(), runtime: settings.RuntimeDirectory("nth"), began: time.Now(),
		}
		ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("stopped waiting for the service after %s", *limit))
		defer cancel()
		if *undo {
			err = d.undo(ctx)
		} else {
			err = d.drain(ctx, *limit)
		}
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
			return errors.New("run as root: sudo nth drain")
		}
		return err
	}
	return cmd
}

// planDrain is "nth drain --dry-run" with the settings at a path: it prints the pods that a drain within limit would evict, and changes nothing.
func (h hostInfo) planDrain(ctx context.Context, path string, limit time.Duration, out io.Writer) error {
	checks.Hush()
	l, err := h.settings().Load(path)
	if err != nil {
		return err
	}
	cfg := l.Config
	id, err := h.newKubelet(cfg, nil).Identity(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, wrap(fmt.Sprintf("This is what \"nth drain\" would do to node %s. Nothing is changed.", id.Node), 0))
	const isSpotNotice = false
	return listPods(ctx, cfg, id, limit, isSpotNotice, out)
}

// manualDrain is a run of "nth drain". It prints each sentence of the service's status, with the time since the start. It needs no settings: those
// of the service count.
type manualDrain struct {
	out            io.Writer
	state, runtime string // the service's directories
	began          time.Time
	sentence       string // of the service's last status
}

// drain asks the service for a drain by a file, and waits until the node is drained or ctx ends. The file replaces the request of an earlier "nth
// drain".
func (d *manualDrain) drain(ctx context.Context, limit time.Duration) error {
	status, why := checks.AwaitStart(ctx, "nth", d.runtime, func(s state.Status) bool { return s.Node != "" })
	switch {
	case why != "":
		return notRunning(why)
	case status.DryRun:
		return errors.New("the service runs as a dry run, and changes nothing")
	case status.Node == "":
		return fmt.Errorf("no drain was requested, as nth cannot drain the node: %s", cmp.Or(status.Identity.Trouble, "nth still looks for the kubelet's credential"))
	}
	request := record.DrainRequest{ID: "manual-" + d.began.UTC().Format(time.RFC3339Nano), Asked: d.began.UTC(), Deadline: d.began.Add(limit).UTC()}
	if err := request.Write(d.state); err != nil {
		return err
	}
	return d.follow(ctx, "the service continues until \"nth drain --undo\"", func(s state.Status) (ended bool, err error) {
		if now, err := record.ReadDrainRequest(d.state); err == nil && now.ID != request.ID { // While the file is unreadable, the service keeps to the last request that it has read.
			return true, errors.New("another \"nth drain\" has ended or replaced this one")
		}
		return drained(s, request.ID)
	})
}

// drained reports whether the requested drain with that ID has ended, by the service's status. The error is nil if the node is drained then, or
// says why it is not.
func drained(s state.Status, id string) (ended bool, err error) {
	for _, e := range s.Events {
		switch {
		case e.ID != id: // It is another event, or an earlier request that the service is about to drop.
		case e.Released:
			return true, errors.New("someone uncordoned the node")
		case e.LeftAlone:
			return true, fmt.Errorf("the Node's annotation %s forbids evictions: remove it to start the drain, or run \"nth drain --undo\" to cancel the request", drain.ActionAnnotation)
		case e.Phase == state.Drained:
			return true, nil
		}
	}
	return false, nil
}

// undo is "nth drain --undo". It removes the request, also if the service does not run: otherwise the service would drain the node at its next
// start. Then it waits until the service has uncordoned the node or others need it cordoned, or until ctx ends.
func (d *manualDrain) undo(ctx context.Context) error {
	if err := record.RemoveDrainRequest(d.state); err != nil {
		return err
	}
	if _, why := checks.Running("nth", d.runtime); why != "" {
		return notRunning(why)
	}
	return d.follow(ctx, "the service continues", func(s state.Status) (ended bool, err error) {
		// The service forgets the event of a request when there is nothing left to undo for it.
		return !slices.ContainsFunc(s.Events, func(e state.EventStatus) bool { return e.Kind == event.Manual }), nil
	})
}

// notRunning returns the error for a service that does not run, or hangs.
func notRunning(why string) error {
	return fmt.Errorf("%s; run: sudo systemctl restart nth", why)
}

// statusPoll is how often the service's status is read.
const statusPoll = 100 * time.Millisecond

// follow prints each new sentence of the service's status until the work has ended or ctx ends. done says by a status whether the work has ended,
// and with what error. If ctx ends first, the error of follow ends with afterwards: what becomes of the work.
func (d *manualDrain) follow(ctx context.Context, afterwards string, done func(state.Status) (ended bool, err error)) error {
	for {
		status, why := checks.Running("nth", d.runtime)
		if why == "" {
			if status.Sentence != d.sentence {
				d.sentence = status.Sentence
				fmt.Fprintf(d.out, "%6.1f s  %s\n", time.Since(d.began).Seconds(), text.Visible(d.sentence, text.Page))
			}
			if ended, err := done(status); ended {
				return err
			}
		}
		if loop.Await(ctx, nil, statusPoll) {
			continue
		}
		if why != "" {
			return fmt.Errorf("%w: %w", context.Cause(ctx), notRunning(why))
		}
		return fmt.Errorf("%w: %s; %s", context.Cause(ctx), d.sentence, afterwards)
	}
}

// drainRequests is the agent's source of events from "nth drain": it reads the request that the command has written.
type drainRequests struct {
	stateDirectory string
	// unreadable is called with the reason when the request cannot be read, and with "" when it can be again.
	unreadable func(why string)
}

// requestPoll is how often the request is read.
const requestPoll = 500 * time.Millisecond

// Run implements agent.Source. Each request, and the end of one, is a snapshot. While the request is unreadable, the agent keeps to the last
// snapshot.
func (r drainRequests) Run(ctx context.Context, sink event.Sink) {
	last, trouble := "nothing was read yet", "" // No request has this ID, so the first look is always reported.
	for more := true; more; more = loop.Await(ctx, nil, requestPoll) {
		request, err := record.ReadDrainRequest(r.stateDirectory)
		switch {
		case err != nil && err.Error() != trouble:
			trouble = err.Error()
			r.unreadable(trouble)
			sink.Trouble(event.Manual, err)
		case err == nil && (request.ID != last || trouble != ""):
			last, trouble = request.ID, ""
			r.unreadable("")
			snapshot := event.Snapshot{Kind: event.Manual}
			if request.ID != "" { // Without a request, nothing is announced.
				snapshot.Events = []event.Event{{
					ID: request.ID, Kind: event.Manual, State: event.Pending, Noticed: request.Asked, Deadline: request.Deadline,
				}}
			}
			sink.Snapshot(snapshot)
		}
	}
}
