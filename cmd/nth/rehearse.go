package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/standin"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// shortestNotice is the shortest that is rehearsed: what EC2 announces has whole seconds, and a drain is not told for one.
const shortestNotice = 5 * time.Second

// commandRehearse is "nth rehearse".
func (s hostInfo) commandRehearse(ctx context.Context, args []string, to program.Streams) error {
	var path, kubeconfig string
	notice := daemon.SpotNotice
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
			if err != nil || notice < shortestNotice || notice > daemon.SpotNotice {
				return fmt.Errorf("must be from %s to %s, which is all that EC2 gives", shortestNotice, daemon.SpotNotice)
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
	return s.rehearse(ctx, cfg, path, kubeconfig, notice, to.Out)
}

// rehearse has the daemon's own parts act upon a notice of that length, and tells what they do.
func (s hostInfo) rehearse(ctx context.Context, cfg config.Config, path, kubeconfig string, notice time.Duration, out io.Writer) error {
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	set, err := s.newRehearsal(ctx, cfg, bootID, kubeconfig)
	if err != nil {
		return err
	}
	defer set.close()
	fmt.Fprint(out, set.words(s.place(), path))
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
func (s *rehearsalRun) forecast(ctx context.Context, notice time.Duration, out io.Writer) error {
	id, err := s.borrowed.Identity(ctx)
	if err != nil {
		return err
	}
	f, err := drain.New(id.Client, id.Node, daemon.DrainOptions(s.cfg.Drain)).Forecast(ctx, notice)
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
func (s *rehearsalRun) perform(ctx context.Context, rules policy.Settings, notice time.Duration, told *timeline) (event.Outcome, error) {
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
func (s *rehearsalRun) agent(rules policy.Settings, source *imds.Source, told *timeline, settled chan<- event.Outcome) *agent.Agent {
	return agent.New(agent.Config{
		Sources:   []agent.Source{source},
		Node:      newLocalNode(s.borrowed, s.cfg, nil, nil),
		Identity:  warmIdentity{kubelet: s.borrowed, every: s.cfg.Kubernetes.KeepWarm, found: s.found},
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
func (s *rehearsalRun) words(place config.Place[config.Config, *config.Config], path string) string {
	from := "the defaults"
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

// rehearsalRun is where a rehearsal takes place: this node, of which nothing is changed, or a cluster that is made up.
type rehearsalRun struct {
	cfg      config.Config
	bootID   string
	borrowed *kubelet.Kubelet
	// cluster says in words what the cluster is.
	cluster string
	shut    func()
}

// identityLimit is how long a rehearsal waits for the API server to say whose the credential is.
const identityLimit = 15 * time.Second

// newRehearsal finds this node as the service does, or by a kubeconfig. Where none is named and there is none to be had, the cluster is
// made up. A node that is real is only looked at.
func (s hostInfo) newRehearsal(ctx context.Context, cfg config.Config, bootID, kubeconfig string) (*rehearsalRun, error) {
	if kubeconfig != "" {
		absolute, err := filepath.Abs(kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("finding the kubeconfig: %w", err)
		}
		cfg.Kubernetes.Kubeconfig, cfg.HostRoot, cfg.Kubernetes.Source = absolute, "", config.Default().Kubernetes.Source
	}
	metadata, err := checkedSource(cfg) // the machine's own: the credential may need the instance's role
	if err != nil {
		return nil, err
	}
	borrowed := kubelet.New(s.identityOptions(cfg, metadata.Document))
	limited, cancel := context.WithTimeout(ctx, identityLimit)
	defer cancel()
	id, err := borrowed.Identity(limited)
	switch {
	case err == nil:
		cfg.DryRun = true
		return &rehearsalRun{
			cfg: cfg, bootID: bootID, borrowed: borrowed, shut: func() {},
			cluster: fmt.Sprintf("The node %s is real, at %s,\nand nothing is written there: this is a dry run, as if every pod went at once.", id.Node, id.Server),
		}, nil
	case kubeconfig != "":
		return nil, err
	}
	return makeUp(cfg, bootID, err)
}

// makeUp makes a cluster up, for want of a real one, which why tells.
func makeUp(cfg config.Config, bootID string, why error) (*rehearsalRun, error) {
	url, shut, err := serve(rehearsal.New(bootID))
	if err != nil {
		return nil, err
	}
	cfg.DryRun = false // There is nothing that could be harmed.
	borrowed := kubelet.New(kubelet.Options{
		UserAgent: "nth-rehearse",
		Read: func(context.Context) (string, []byte, error) {
			return "a kubeconfig that is made up", rehearsal.Kubeconfig(url), nil
		},
	})
	var words strings.Builder
	words.WriteString("So is the cluster.\n")
	if errors.Is(why, kubelet.ErrNotYet) {
		words.WriteString("This machine is no node, so the node and its pods are made up:\n")
	} else {
		fmt.Fprintf(&words, "The node and its pods are made up, as this machine's own cannot be used: %s\n", why)
	}
	for _, line := range rehearsal.Describe() {
		words.WriteString("\n  " + line)
	}
	return &rehearsalRun{cfg: cfg, bootID: bootID, borrowed: borrowed, cluster: words.String(), shut: shut}, nil
}

// found takes no notice of what proves the identity: it has been told.
func (*rehearsalRun) found(kubelet.Identity) {}

func (s *rehearsalRun) close() { s.shut() }

// serve serves on a free port of this machine's own, until shut is called.
func serve(handler http.Handler) (url string, shut func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("opening a port for a stand-in: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // It ends when it is shut.
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// timeline writes what nth says as lines with the time since the notice and the time that is left, in plain characters, which any
// terminal shows:
//
//	 time      left
//	0.5 s   119.4 s    cordoned the node after 4ms
//	0.5 s   119.4 s  ! disruption budget web blocks the eviction of default/web-2; retrying
//
// It is a logrus.Formatter and an agent.Listener, and safe for concurrent use.
type timeline struct {
	out io.Writer
	dry bool

	mu           sync.Mutex
	notice, ends time.Time
	over         bool
	pods         map[string]*podTimes
	order        []string
	result       *state.Result
	took         time.Duration
}

// podTimes are when a pod was asked to end and was gone, since the notice; zero if it was not.
type podTimes struct {
	asked, gone time.Duration
	deleted     bool
	heldBy      string
	held        time.Duration // since when
}

func newTimeline(out io.Writer, dry bool) *timeline {
	return &timeline{out: out, dry: dry, pods: map[string]*podTimes{}}
}

// begin is when the notice is given, of an interruption at a time.
func (t *timeline) begin(ends time.Time) {
	t.mu.Lock()
	t.notice, t.ends = time.Now(), ends
	t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%7s  %8s\n", "time", "left")
	t.say(fmt.Sprintf("EC2 gives notice that it takes the machine in %.0f s", time.Until(ends).Seconds()))
}

// say writes a line.
func (t *timeline) say(text string) {
	line, _ := t.Format(&logrus.Entry{Message: text}) // It cannot fail.
	_, _ = t.out.Write(line)                          // Nobody may be reading any more.
}

// end keeps all from being told that is said from now on.
func (t *timeline) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// troubles are the messages that deserve a mark.
var troubles = map[any]bool{
	systemd.PodHeld: true, systemd.PodDeleted: true, systemd.DrainIncomplete: true, systemd.DrainLeft: true,
	systemd.SourceTrouble: true, systemd.IdentityWaiting: true, systemd.StateTrouble: true,
}

// Format implements logrus.Formatter.
func (t *timeline) Format(entry *logrus.Entry) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, nil
	}
	mark, text := " ", strings.TrimSpace(entry.Message)
	if troubles[entry.Data[systemd.FieldMessageID]] {
		mark = "!"
	}
	if err, found := entry.Data[logrus.ErrorKey]; found {
		text += fmt.Sprintf(": %s", err)
	}
	if t.notice.IsZero() {
		return fmt.Appendf(nil, "%7s  %8s  %s %s\n", "", "", mark, text), nil
	}
	left := max(time.Until(t.ends), 0)
	return fmt.Appendf(nil, "%5.1f s  %6.1f s  %s %s\n", time.Since(t.notice).Seconds(), left.Seconds(), mark, text), nil
}

// OnTransition implements agent.Listener.
func (t *timeline) OnTransition(h state.Transition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.Entry.Result != nil {
		t.result, t.took = h.Entry.Result, time.Since(t.notice)
	}
	if h.Pod == "" {
		return
	}
	p, known := t.pods[h.Pod]
	if !known {
		p = &podTimes{}
		t.pods[h.Pod], t.order = p, append(t.order, h.Pod)
	}
	switch now := time.Since(t.notice); h.Kind { // these are what happens to a pod
	case state.PodEvicted, state.PodDeleted:
		p.asked, p.deleted = now, h.Kind == state.PodDeleted
	case state.PodGone:
		p.gone = now
	case state.PodHeld:
		if p.heldBy == "" {
			p.heldBy, p.held = h.Detail, now
		}
	}
}

// conclude says what came of it, and returns what the program ends with.
func (t *timeline) conclude(outcome event.Outcome, rules policy.Settings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprint(t.out, "\n", t.table())
	switch outcome {
	case event.Drained:
		if t.dry {
			fmt.Fprintln(t.out, "The node would be drained.")
			return nil
		}
		fmt.Fprintf(t.out, "The node is drained after %.1f s, %.0f s before EC2 takes the machine.\n", t.took.Seconds(), max(time.Until(t.ends), 0).Seconds())
	case event.NoDrain:
		fmt.Fprintf(t.out, "The node is not drained, since the settings do not ask for it: events.%s.action is %q.\n",
			event.SpotInterruption, rules[event.SpotInterruption].Action)
	case event.LeftAlone:
		fmt.Fprintln(t.out, "The node is left alone, as people ask for on the Node.")
	case event.OutOfTime:
		fmt.Fprintln(t.out, "The node is NOT drained in time. What is left would end with the machine.")
		return program.ErrTold
	}
	return nil
}

// table is a line for each pod that had to go.
func (t *timeline) table() string {
	if t.dry || len(t.order) == 0 {
		return ""
	}
	width := 0
	for _, name := range t.order {
		width = max(width, len(name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %8s  %8s\n", width, "pod", "asked at", "gone at")
	for _, name := range t.order {
		p := t.pods[name]
		line := fmt.Sprintf("%-*s  %8s  %8s  %s", width, name, moment(p.asked), moment(p.gone), p.note())
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String() + "\n"
}

// note says what deserves a look about a pod.
func (p *podTimes) note() string {
	var notes []string
	by := p.heldBy
	if !strings.Contains(by, " ") { // It is a name, and not why the API server refuses it.
		by = "the disruption budget " + by
	}
	switch held := p.asked - p.held; {
	case p.heldBy == "":
	case p.asked == 0:
		notes = append(notes, "held to the end by "+by)
	case held >= time.Second/10:
		notes = append(notes, fmt.Sprintf("held for %.1f s by %s", held.Seconds(), by))
	}
	if p.deleted {
		notes = append(notes, "deleted, as no time was left")
	}
	return strings.Join(notes, "; ")
}

// moment is a time since the notice; "-" if there was none.
func moment(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
