package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/text"
)

// byHandDeadline is the default of --deadline.
const byHandDeadline = 10 * time.Minute

// drainCommand returns "nth drain".
func (h hostInfo) drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain", Short: "drain this node now, or undo that", Args: cobra.NoArgs,
		Long: `Cordons and drains this node, for operators and for what patches machines: with the kubelet's identity and
the settings of [drain], and whether the service runs or not. It respects disruption budgets to the end, and
deletes nothing. The node stays cordoned, also over reboots, until --undo takes that back; the service does
not uncordon it. The exit status is 0 if the node is drained, and 1 if not: its time was over, somebody
uncordoned the node or wants the pods left alone, or it was interrupted; the node stays cordoned then.
It needs root's rights.`,
	}
	path := h.settings().ConfigFlag(cmd)
	undo := cmd.Flags().Bool("undo", false, `take back what "nth drain" has set, and nothing else; 0 if nothing of it is left`)
	dryRun := cmd.Flags().Bool("dry-run", false, "print what would be done, but change nothing in the cluster")
	limit := byHandDeadline
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
		cfg.DryRun = cfg.DryRun || *dryRun
		ctx, stop := daemon.UntilSignal(cmd.Context())
		defer stop()
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
		defer cancel()
		return h.drainByHand(ctx, cfg, *undo, cmd.OutOrStdout())
	}
	return cmd
}

// drainByHand drains this node, or undoes that.
func (h hostInfo) drainByHand(ctx context.Context, cfg config.Config, undo bool, out io.Writer) error {
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	metadata, err := checkedSource(cfg)
	if err != nil {
		return err
	}
	id, err := h.newKubelet(cfg, metadata, nil).Identity(ctx)
	if err != nil {
		return err
	}
	options := drainOptions(cfg)
	options.Writer, options.Gate, options.LoadBalancers = drain.ByHand, kube.NewGate(evictionsAtOnce), balancers(cfg, metadata)
	if options.ScriptsWait > 0 {
		options.Scripts = h.scripts(cfg)
	}
	node := drain.New(id.Client, id.Node, options)
	d := &manualDrain{out: out, name: id.Node, bootID: bootID, dryRun: cfg.DryRun, began: time.Now()}
	switch {
	case cfg.DryRun && undo:
		return d.undo(ctx, drain.NewDryRun(node), "would take")
	case cfg.DryRun:
		return d.drain(ctx, drain.NewDryRun(node))
	case undo:
		return d.undo(ctx, node, "takes")
	}
	return d.drain(ctx, node)
}

// manualDrain is a run of "nth drain". It prints lines with the time since its start.
type manualDrain struct {
	out          io.Writer
	name, bootID string
	dryRun       bool
	began        time.Time
	stop         context.CancelFunc // stops the guard
	ended        bool               // by what the guard has reported
	why          error              // why the node is not drained
}

// undo removes what "nth drain" has set, once the kubelet of this boot has reported the node Ready.
func (d *manualDrain) undo(ctx context.Context, node agent.Node, takes string) error {
	result, err := node.Uncordon(ctx, func(id string, _ time.Time) bool { return id == d.bootID })
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	case err != nil:
		return err
	case result.LeftTo() != "":
		d.print("the cordon of node %s is left to %s, who still needs it", d.name, result.LeftTo())
	case result == drain.UncordonLifted:
		d.print("node %s %s pods again", d.name, takes)
	case result == drain.UncordonNodeGone:
		d.print("Node %s no longer exists; nothing to undo", d.name)
	default:
		d.print("node %s was not cordoned by nth drain; nothing to undo", d.name)
	}
	return nil
}

// Why "nth drain" ends before the node is drained.
var (
	errLifted = errors.New("someone uncordoned the node")
	errLeft   = fmt.Errorf("the annotation %s on the Node asks for its pods to be left alone", drain.ActionAnnotation)
)

// drain drains the node with its own guard.
func (d *manualDrain) drain(ctx context.Context, node agent.Node) error {
	goal := drain.Goal{
		Generation: 1, Close: true, Evict: true,
		Claim: drain.Claim{Event: drain.ByHand, Kind: drain.ByHand, BootID: d.bootID, Since: time.Now().UTC()},
	}
	goal.Soft, _ = ctx.Deadline()
	goal.TimeEnds = goal.Soft
	running, stop := context.WithCancel(ctx)
	defer stop()
	d.stop = stop
	var guard drain.Guard
	guard = node.Guard(goal, func(p drain.Progress) {
		if p.Kind == state.NodeReopened && p.Closed == 0 { // Operators have lifted the cordon of an earlier call. Each call counts by itself.
			goal.Generation++
			guard.Adjust(goal)
			return
		}
		d.onProgress(p)
	})
	guard.Run(running)
	if !d.ended {
		d.why = context.Cause(ctx)
	}
	result := guard.Result()
	if d.why != nil {
		return fmt.Errorf("draining node %q: %w%s; the node stays cordoned until \"nth drain --undo\"", d.name, d.why, describeLeft(result))
	}
	is := "is"
	if d.dryRun {
		is = "would be"
	}
	d.say(fmt.Sprintf("node %s %s drained: %s evicted, %d left in place", d.name, is, text.Pods(result.Evicted), result.Skipped))
	return nil
}

// describeLeft lists the pods that are left, and what holds them.
func describeLeft(result drain.Result) string {
	var left []string
	for _, pod := range result.Left {
		if by := result.HeldBy[pod]; by != "" {
			pod += " (held by " + by + ")"
		}
		left = append(left, pod)
	}
	if len(left) == 0 {
		return ""
	}
	return "; left: " + strings.Join(left, ", ")
}

// say prints a line with the time since the start.
func (d *manualDrain) say(line string) {
	d.print("%6.1f s  %s", time.Since(d.began).Seconds(), line)
}

// print prints one line.
func (d *manualDrain) print(format string, args ...any) {
	fmt.Fprintln(d.out, text.Visible(fmt.Sprintf(format, args...), text.Page))
}

// onProgress is called by the guard, from one goroutine.
func (d *manualDrain) onProgress(p drain.Progress) {
	if d.ended {
		return
	}
	switch {
	case p.Kind == state.NodeReopened:
		d.end(errLifted)
		return
	case p.State.Limited && p.State.Looked:
		d.end(errLeft)
		return
	case p.Kind == state.NodeEmpty:
		d.end(nil)
	}
	if line := agent.ProgressText(p, time.Since(d.began), d.dryRun); line != "" {
		d.say(line)
	}
}

// end stops the drain; why is its result.
func (d *manualDrain) end(why error) {
	d.ended, d.why = true, why
	d.stop()
}
