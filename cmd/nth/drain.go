package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// manualDeadline is the default of --deadline.
const manualDeadline = 10 * time.Minute

// drainCommand returns "nth drain".
func (h hostInfo) drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain", Short: "drain this node now, or undo that", Args: cobra.NoArgs,
		Long: `Asks the service to cordon and drain this node, for operators and for what patches machines, and waits until
that is done. It respects disruption budgets to the end, and deletes no pod. The node stays cordoned, also over
reboots, until --undo. The exit status is 0 if the node is drained, and 1 if not: its time was over, somebody
uncordoned the node or opted it out, or the service does not run. It needs root's rights.`,
	}
	path := h.settings().ConfigFlag(cmd)
	undo := cmd.Flags().Bool("undo", false, `end what "nth drain" has asked for, and wait until the node is uncordoned, unless others need it cordoned`)
	dryRun := cmd.Flags().Bool("dry-run", false, "show the pods that would have to go, and change nothing")
	cmd.MarkFlagsMutuallyExclusive("undo", "dry-run")
	limit := manualDeadline
	cli.Flag(cmd, "deadline", "DURATION", "give up after so long (default 10m)", func(value string) (err error) {
		if limit, err = time.ParseDuration(value); err != nil || limit <= 0 {
			return errors.New("must be a duration such as 90s or 10m")
		}
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := h.quietConfig(*path)
		if err != nil {
			return err
		}
		ctx, stop := daemon.UntilSignal(cmd.Context())
		defer stop()
		d := manualDrain{out: cmd.OutOrStdout(), cfg: cfg, began: time.Now()}
		if *dryRun {
			return h.planDrain(ctx, cfg, limit, d.out)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
		defer cancel()
		err = d.run(ctx, limit, *undo)
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
			return errors.New("run as root: sudo nth drain")
		}
		return err
	}
	return cmd
}

// planDrain shows the pods that a drain would evict.
func (h hostInfo) planDrain(ctx context.Context, cfg config.Config, limit time.Duration, out io.Writer) error {
	id, err := h.newKubelet(cfg, nil).Identity(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, wrap(fmt.Sprintf("Node %s would be cordoned and drained. Nothing is changed.", id.Node), 0))
	plan := rehearsalRun{cfg: cfg, real: id}
	return plan.listPods(ctx, limit, fmt.Sprintf("of %.0f s", limit.Seconds()), out)
}

// manualDrain is a run of "nth drain". It prints what the service says, with the time since the start.
type manualDrain struct {
	out   io.Writer
	cfg   config.Config
	began time.Time
	id    string // of the request; "" with --undo
	// sentence is what the service said last, and heldBy what held pods back then, by the name of the pod.
	sentence string
	heldBy   map[string]string
}

// statusPoll is how often the service's status is read.
const statusPoll = 100 * time.Millisecond

// run asks the service for a drain, or with undo for its end, and waits for that until ctx ends. With undo it removes the request even if the
// service does not run, which would otherwise drain the node when it starts.
func (d *manualDrain) run(ctx context.Context, limit time.Duration, undo bool) error {
	dir := daemon.StateDirectory(&d.cfg.Common)
	done, unfinished := d.drained, "the service continues until \"nth drain --undo\""
	if undo {
		done, unfinished = undone, "the service continues"
		if err := record.RemoveDrainRequest(dir); err != nil {
			return err
		}
	}
	status, why := checks.Running("nth", d.cfg.RuntimeDirectory, d.began)
	switch {
	case why != "":
		return notRunning(why)
	case status.DryRun:
		return errors.New("the service runs as a dry run, and changes nothing")
	}
	if !undo {
		d.id = "manual-" + d.began.UTC().Format(time.RFC3339Nano)
		if err := (record.DrainRequest{ID: d.id, Asked: d.began.UTC(), Deadline: d.began.Add(limit).UTC()}).Write(dir); err != nil {
			return err
		}
	}
	for {
		if err := d.superseded(dir); err != nil {
			return err
		}
		if status, why = checks.Running("nth", d.cfg.RuntimeDirectory, time.Now()); why == "" {
			d.show(status)
			if ended, err := done(status); ended {
				return err
			}
		}
		switch {
		case loop.Await(ctx, nil, statusPoll):
		case why != "":
			return fmt.Errorf("%w: %w", context.Cause(ctx), notRunning(why))
		default:
			return fmt.Errorf("%w: %s%s; %s", context.Cause(ctx), d.sentence, d.holders(), unfinished)
		}
	}
}

// notRunning returns the error for a service that does not run; why is the text of checks.Running.
func notRunning(why string) error {
	return fmt.Errorf("the service does not run: sudo systemctl start nth (%s)", why)
}

// superseded returns an error if another "nth drain" has removed or replaced the request of this run; nil if not, or with --undo.
func (d *manualDrain) superseded(dir string) error {
	if d.id == "" {
		return nil
	}
	if request, err := record.ReadDrainRequest(dir); err == nil && request.ID == "" {
		return errors.New("\"nth drain --undo\" has ended this drain")
	} else if err == nil && request.ID != d.id {
		return errors.New("a later \"nth drain\" has replaced this one")
	}
	return nil // While the request is unreadable, the service keeps to the one that it has read last.
}

// show prints the service's sentence if it has changed. It keeps what holds pods back, for the error when time is over.
func (d *manualDrain) show(s state.Status) {
	if s.Step != nil { // Between two steps, the status says nothing about pods: what held them in the last step still counts.
		d.heldBy = s.Step.HeldBy
	}
	if s.Sentence != d.sentence {
		d.sentence = s.Sentence
		fmt.Fprintf(d.out, "%6.1f s  %s\n", time.Since(d.began).Seconds(), text.Visible(d.sentence, text.Page))
	}
}

// holders names the pods that are held back and what holds them, as a part of a sentence; "" if none is.
func (d *manualDrain) holders() string {
	var held []string
	for _, pod := range slices.Sorted(maps.Keys(d.heldBy)) {
		held = append(held, pod+" (held by "+d.heldBy[pod]+")")
	}
	if len(held) == 0 {
		return ""
	}
	return "; left: " + strings.Join(held, ", ")
}

// drained reports whether the drain that this run has asked for has ended. The error says why the node is not drained; nil if it is.
func (d *manualDrain) drained(s state.Status) (ended bool, err error) {
	for _, e := range s.Events {
		switch {
		case e.ID != d.id: // It is another event, or an earlier request that the service is about to drop.
		case e.Released:
			return true, errors.New("someone uncordoned the node")
		case e.LeftAlone:
			return true, fmt.Errorf("the annotation %s on the Node asks for its pods to be left alone", drain.ActionAnnotation)
		case e.Phase == state.Drained:
			return true, nil
		}
	}
	return false, nil
}

// undone reports whether the service has nothing left to undo for "nth drain". The error is always nil.
func undone(s state.Status) (ended bool, err error) {
	left := slices.ContainsFunc(s.Events, func(e state.EventStatus) bool { return e.Kind == event.Manual })
	return !left, nil
}

// drainRequests is the agent's source of what "nth drain" asks for.
type drainRequests struct {
	stateDirectory string
	// unreadable is called with why the request cannot be read, and with "" once it can.
	unreadable func(why string)
}

// requestPoll is how often the request is read.
const requestPoll = 500 * time.Millisecond

// Run implements agent.Source. While the request is unreadable, the agent keeps to the one that it got last.
func (r drainRequests) Run(ctx context.Context, sink event.Sink) error {
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
			if request.ID != "" {
				snapshot.Events = []event.Event{{
					ID: request.ID, Kind: event.Manual, State: event.Pending, Noticed: request.Asked, Deadline: request.Deadline,
				}}
			}
			sink.Snapshot(snapshot)
		}
	}
	return nil
}
