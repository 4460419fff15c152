package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/standin"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// shortestNotice is the shortest that is rehearsed: what EC2 announces has whole seconds, and a drain is not told for one.
const shortestNotice = 5 * time.Second

// commandRehearse is "nth rehearse".
func commandRehearse(ctx context.Context, args []string, to program.Streams) error {
	var path, kubeconfig string
	notice := draining.SpotNotice
	done, err := program.Parse("nth rehearse", rehearseUsage, args, to, func(flags *flag.FlagSet) {
		program.ConfigFlag(flags, &path)
		flags.Func("kubeconfig", "", func(value string) error {
			if kubeconfig = value; value == "" {
				return errors.New("must name a file")
			}
			return nil
		})
		flags.Func("deadline", "", func(value string) (err error) {
			notice, err = time.ParseDuration(value)
			if err != nil || notice < shortestNotice || notice > draining.SpotNotice {
				return fmt.Errorf("must be from %s to %s, which is all that EC2 gives", shortestNotice, draining.SpotNotice)
			}
			return nil
		})
	})
	if done || err != nil {
		return err
	}
	cfg, err := quietConfig(path)
	if err != nil {
		return err
	}
	ctx, stop := program.UntilSignal(ctx)
	defer stop()
	return rehearse(ctx, cfg, path, kubeconfig, notice, to.Out)
}

// rehearse has the daemon's own parts act upon a notice of that length, and tells what they do.
func rehearse(ctx context.Context, cfg config.Config, path, kubeconfig string, notice time.Duration, out io.Writer) error {
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	set, err := setStage(ctx, cfg, bootID, kubeconfig)
	if err != nil {
		return err
	}
	defer set.close()
	fmt.Fprint(out, set.words(path))
	rules, only := policyOf(set.cfg.Events), set.cfg.IMDS.LifeCycles
	switch {
	case rules[event.SpotInterruption].Action == policy.Ignore:
		fmt.Fprintf(out, "\nNothing would be done: events.%s.action is %q.\n", event.SpotInterruption, policy.Ignore)
		return nil
	case len(only) > 0 && !slices.Contains(only, "spot"):
		fmt.Fprintf(out, "\nNothing would be done: imds.life_cycles is %q, which leaves out spot instances.\n", only)
		return nil
	}
	told := newTimeline(out, set.cfg.DryRun)
	outcome, err := set.perform(ctx, rules, notice, told)
	told.end()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the rehearsal was ended before it was over: %w", context.Cause(ctx))
	case err != nil:
		return err
	}
	if err := told.conclude(outcome, rules); err != nil || !set.cfg.DryRun || outcome != event.Drained {
		return err
	}
	return set.forecast(ctx, notice, out)
}

// forecast says what a dry run cannot: how long the pods of a real node may take.
func (s *stage) forecast(ctx context.Context, notice time.Duration, out io.Writer) error {
	id, err := s.borrowed.Identity(ctx)
	if err != nil {
		return err
	}
	f, err := drain.New(id.Client, id.Node, draining.Options(s.cfg.Drain)).Forecast(ctx, notice)
	if err != nil {
		return err
	}
	needs, cut := forecastWords(f, notice)
	fmt.Fprintf(out, "By their grace periods, %s.\n", needs)
	for _, pod := range cut {
		fmt.Fprintln(out, "! "+pod)
	}
	return nil
}

// errUnsettled is why a rehearsal ends that comes to no end.
var errUnsettled = errors.New("the time of the notice is over, and nth does not say what came of it")

// perform announces a spot interruption to an agent, and returns what came of it.
func (s *stage) perform(ctx context.Context, rules policy.Settings, notice time.Duration, told *timeline) (event.Outcome, error) {
	metadata, watched := standin.New(), make(chan struct{})
	endpoint, shut, err := serve(metadata)
	if err != nil {
		return "", err
	}
	defer shut()
	opts := metadataOptions(s.cfg, s.bootID, rules)
	opts.Endpoint = endpoint
	opts.Told = func(imds.Scope) { close(watched) }
	source, err := newSource(opts)
	if err != nil {
		return "", err
	}
	settled, ended := make(chan event.Outcome, 1), make(chan struct{})
	nth := s.agent(rules, source, told, settled)
	ctx, stop := context.WithCancel(ctx)
	var failed error
	go func() {
		defer close(ended)
		failed = nth.Run(ctx)
	}()
	defer func() {
		stop()
		<-ended
	}()
	select {
	case <-watched:
	case <-ended:
		return "", failed
	}
	ends := time.Now().Add(notice).Round(time.Second)
	told.begin(ends)
	metadata.SetSpot("terminate", ends)
	select {
	case outcome := <-settled:
		return outcome, nil
	case <-time.After(notice + patience):
		return "", errUnsettled
	case <-ended: // as it was asked to, or not
		return "", failed
	}
}

// agent is the daemon's, without what tells others or asks AWS. settled gets what comes of the notice.
func (s *stage) agent(rules policy.Settings, source *imds.Source, told *timeline, settled chan<- event.Outcome) *agent.Agent {
	return agent.New(agent.Config{
		Sources:   []agent.Source{source},
		Node:      newSelf(s.borrowed, s.cfg, nil, nil),
		Identity:  warm{kubelet: s.borrowed, every: s.cfg.Kubernetes.KeepWarm, found: s.found},
		Record:    record.InMemory(s.bootID),
		Policy:    rules,
		Unwatched: unwatched(rules, false),
		BootID:    s.bootID,
		Log:       told.log(),
		DryRun:    s.cfg.DryRun,
		Settled: func(ev event.Event, outcome event.Outcome) {
			if ev.Kind == event.SpotInterruption && outcome != "" {
				select {
				case settled <- outcome:
				default: // It has been told.
				}
			}
		},
		Listeners: []agent.Listener{told},
	})
}

// patience is how long after the deadline a rehearsal waits for nth to say what came of the notice.
const patience = time.Minute

const rehearseWords = `nth rehearses a spot interruption, with the settings in effect here: %s
The metadata service is a stand-in, in this process. %s
`

// words say what is real and what is not.
func (s *stage) words(path string) string {
	from := "the defaults"
	place := lookAround().place()
	sources, _ := place.Sources(path) // They have just been read.
	for _, source := range sources {
		if source.Passed == "" {
			from = source.File
			break
		}
	}
	if len(sources) > 1 {
		from += " and its drop-ins"
	}
	return fmt.Sprintf(rehearseWords, from, s.cluster)
}

// log is a logger whose lines are those of the timeline.
func (t *timeline) log() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(t.out)
	logger.SetFormatter(t)
	return logrus.NewEntry(logger)
}
