package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// byHandDeadline is how long "nth drain" tries unless told otherwise.
const byHandDeadline = 10 * time.Minute

// commandDrain is "nth drain".
func (s hostInfo) commandDrain(ctx context.Context, args []string, to program.Streams) error {
	var path string
	var undo bool
	limit := byHandDeadline
	done, err := program.Parse("nth drain", drainUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.BoolVar(&undo, "undo", false, "")
		flags.Func("deadline", "", func(value string) (err error) {
			if limit, err = time.ParseDuration(value); err != nil || limit <= 0 {
				return errors.New("must be a duration such as 90s or 10m")
			}
			return nil
		})
	})
	if done || err != nil {
		return err
	}
	cfg, err := s.quietConfig(path)
	if err != nil {
		return err
	}
	ctx, stop := program.UntilSignal(ctx)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %s", limit))
	defer cancel()
	return s.drainByHand(ctx, cfg, undo, to.Out)
}

// drainByHand drains this node, or takes back what that has set.
func (s hostInfo) drainByHand(ctx context.Context, cfg config.Config, undo bool, out io.Writer) error {
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	metadata, err := checkedSource(cfg)
	if err != nil {
		return err
	}
	id, err := kubelet.New(s.identityOptions(cfg, metadata.Document)).Identity(ctx)
	if err != nil {
		return err
	}
	options := daemon.DrainOptions(cfg.Drain)
	options.Writer, options.Gate, options.LoadBalancers = drain.ByHand, drain.NewGate(evictionsAtOnce), balancers(cfg, metadata)
	if options.ScriptsWait > 0 {
		options.Scripts = s.scripts(cfg)
	}
	whole := drain.New(id.Client, id.Node, options)
	h := &manualDrain{out: out, name: id.Node, bootID: bootID, began: time.Now(), over: make(chan struct{})}
	switch {
	case cfg.DryRun && undo:
		return h.undo(ctx, drain.NewDryRun(whole), "would take")
	case cfg.DryRun:
		h.mark = "dry run: "
		return h.drain(ctx, drain.NewDryRun(whole))
	case undo:
		return h.undo(ctx, whole, "takes")
	}
	return h.drain(ctx, whole)
}

// manualDrain is what "nth drain" does, and tells in lines with the time since it began.
type manualDrain struct {
	out          io.Writer
	name, bootID string
	mark         string // goes before each line
	began        time.Time
	over         chan struct{} // closed once there is nothing to wait for
	ended        bool
	why          error // why it is over without the node being drained
}

// undo takes back what "nth drain" has set, once the kubelet of this boot has reported the node Ready.
func (h *manualDrain) undo(ctx context.Context, node agent.Node, takes string) error {
	result, err := node.Uncordon(ctx, func(id string) bool { return id == h.bootID })
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	case err != nil:
		return err
	case result.LeftTo() != "":
		fmt.Fprintf(h.out, "the cordon of node %s is left to %s, who still needs it\n", h.name, result.LeftTo())
	case result == drain.UncordonLifted:
		fmt.Fprintf(h.out, "node %s %s pods again\n", h.name, takes)
	case result == drain.UncordonNodeGone:
		fmt.Fprintf(h.out, "Node %s no longer exists; nothing to undo\n", h.name)
	default:
		fmt.Fprintf(h.out, "node %s was not cordoned by nth drain; nothing to undo\n", h.name)
	}
	return nil
}

// What ends "nth drain" before the node is drained.
var (
	errLifted = errors.New("someone uncordoned the node")
	errLeft   = fmt.Errorf("the annotation %s on the Node asks for its pods to be left alone", drain.ActionAnnotation)
)

// drain drains the node with a guard of its own.
func (h *manualDrain) drain(ctx context.Context, node agent.Node) error {
	id := []string{drain.ByHand} // Each call is a new order, whatever people have lifted before.
	goal := drain.Goal{
		Number: 1, Evict: true, Events: id, Kinds: id, Unclosed: id, Anew: id,
		Claim: drain.Claim{Event: drain.ByHand, Kind: drain.ByHand, Events: id, BootID: h.bootID, Since: time.Now().UTC()},
	}
	goal.Soft, _ = ctx.Deadline()
	goal.TimeEnds = goal.Soft
	guard := node.Guard(goal, h.tell)
	running, stop := context.WithCancel(ctx)
	var stood sync.WaitGroup
	stood.Go(func() { guard.Run(running) })
	select {
	case <-h.over:
	case <-ctx.Done():
	}
	stop()
	stood.Wait()
	if !h.ended {
		h.why = context.Cause(ctx)
	}
	result := guard.Result()
	if h.why != nil {
		return fmt.Errorf("draining node %q: %w%s; the node stays cordoned until \"nth drain --undo\"", h.name, h.why, leftOf(result))
	}
	h.say("node %s is drained: %d pods evicted, %d left in place", h.name, result.Evicted, result.Skipped)
	return nil
}

// leftOf names the pods that are left, and what holds them.
func leftOf(result drain.Result) string {
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

func (h *manualDrain) say(format string, args ...any) {
	fmt.Fprintf(h.out, "%6.1f s  %s%s\n", time.Since(h.began).Seconds(), h.mark, fmt.Sprintf(format, args...))
}

// tell takes in what the guard tells, from one goroutine.
func (h *manualDrain) tell(p drain.Progress) {
	if h.ended {
		return
	}
	if text := inHandWords(p); text != "" {
		h.say("%s", text)
	}
	switch {
	case p.Kind == state.NodeReopened:
		h.end(errLifted)
	case p.State.Limited && p.State.Looked:
		h.end(errLeft)
	case p.Kind == state.NodeEmpty:
		h.end(nil)
	}
}

func (h *manualDrain) end(why error) {
	h.ended, h.why = true, why
	close(h.over)
}

// handWords say what the guard tells, with what belongs to it in braces. What is not here is told with what ends the drain, or is no
// news to who waits for the end.
var handWords = map[state.TransitionKind]string{
	state.NodeClosed:       "cordoned the node",
	state.NodeFoundClosed:  "the node was already cordoned by someone else; --undo will not uncordon it",
	state.NodeMissing:      "no Node object: {detail}; waiting",
	state.NodeExcluded:     "excluded the node from external load balancers",
	state.NodeUnclosable:   "{detail}; retrying",
	state.EvictionsDelayed: "delaying evictions for {detail}",
	state.TargetsLeft:      "waiting for load balancers: {detail}",
	state.PodsFound:        "{total} pods to evict",
	state.PodArrived:       "{pod} was scheduled to the cordoned node; evicting it too",
	state.PodEvicted:       "evicted {pod}",
	state.PodHeld:          "disruption budget {detail} blocks the eviction of {pod}; retrying",
	state.PodRefused:       "eviction of {pod} refused: {detail}; retrying",
	state.PodOverdue:       "{pod} is still running after its grace period",
	state.PodsReturning:    "{detail} keeps recreating pods on the cordoned node; backing off",
	state.PodsLeftToReturn: "{detail} keeps recreating pods on the cordoned node; leaving them there",
	state.PodGone:          "{pod} is gone, {left} of {total} left",
	state.VolumesInUse:     "waiting for volumes: {detail} still in use",
}

// inHandWords says in words what the guard tells; "" for what is no news.
func inHandWords(p drain.Progress) string {
	text := handWords[p.Kind]
	if p.Kind == state.PodRefused && p.Pod == "" { // It concerns the node.
		text = "{detail}; retrying"
	}
	return strings.NewReplacer("{pod}", p.Pod, "{detail}", p.Detail, "{total}", strconv.Itoa(p.Total), "{left}", strconv.Itoa(p.Left)).Replace(text)
}
