package main

import (
	"context"
	"errors"
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
	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/standin"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// shortestNotice is the shortest notice: EC2's notices are in whole seconds, and a drain needs some.
const shortestNotice = 5 * time.Second

// rehearseCommand returns "nth rehearse".
func (h hostInfo) rehearseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rehearse", Short: "show what a spot interruption would do, change nothing", Args: cobra.NoArgs,
		Long: `Shows what nth does when EC2 takes this machine back, with the settings in effect: a simulated metadata
service gives a spot notice, and nth acts on it. It ends when the node is drained. It needs no rights and
changes nothing: on a node it looks at that node, as a dry run; elsewhere it simulates a cluster.
The exit status is 0 if the node was drained in time, or need not be by the settings, and 1 if not.`,
	}
	path := h.settings().ConfigFlag(cmd)
	kubeconfig := cli.FileFlag(cmd, "kubeconfig", "look at the node whose kubelet has this kubeconfig")
	notice := daemon.SpotNotice
	cli.Flag(cmd, "deadline", "DURATION", "how long the notice is, 5s to 2m (default 2m, as EC2's)", func(value string) (err error) {
		notice, err = time.ParseDuration(value)
		if err != nil || notice < shortestNotice || notice > daemon.SpotNotice {
			return fmt.Errorf("must be from %s to %s, which is all that EC2 gives", shortestNotice, daemon.SpotNotice)
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
		return h.rehearse(ctx, cfg, *path, *kubeconfig, notice, cmd.OutOrStdout())
	}
	return cmd
}

// rehearse makes the daemon's own parts handle a notice of that length, and prints what they do.
func (h hostInfo) rehearse(ctx context.Context, cfg config.Config, path, kubeconfig string, notice time.Duration, out io.Writer) error {
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	run, err := h.newRehearsal(ctx, cfg, bootID, kubeconfig)
	if err != nil {
		return err
	}
	defer run.shut()
	fmt.Fprint(out, run.intro(h.place(), path))
	rules, only := policyOf(run.cfg), run.cfg.IMDS.LifeCycles
	switch {
	case rules[event.SpotInterruption].Action == policy.Ignore:
		fmt.Fprintf(out, "\nNothing would be done: events.%s.action is %q.\n", event.SpotInterruption, policy.Ignore)
		return nil
	case len(only) > 0 && !slices.Contains(only, "spot"):
		fmt.Fprintf(out, "\nNothing would be done: imds.life_cycles is %q, which leaves out spot instances.\n", only)
		return nil
	}
	lines := newTimeline(out, run.cfg.DryRun)
	outcome, err := run.perform(ctx, rules, notice, lines)
	lines.end()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the rehearsal was ended before it was over: %w", context.Cause(ctx))
	case err != nil:
		return err
	}
	if err := lines.conclude(outcome, rules); err != nil || !run.cfg.DryRun || outcome != event.Drained {
		return err
	}
	return run.forecast(ctx, notice, out)
}

// forecast prints what a dry run cannot show: how long the pods of a real node may take to end.
func (r *rehearsalRun) forecast(ctx context.Context, notice time.Duration, out io.Writer) error {
	id, err := r.borrowed.Identity(ctx)
	if err != nil {
		return err
	}
	f, err := drain.New(id.Client, id.Node, drainOptions(r.cfg)).Forecast(ctx, notice)
	if err != nil {
		return err
	}
	needs, cut := describeForecast(f, notice)
	fmt.Fprintf(out, "By their grace periods, %s.\n", needs)
	for _, pod := range cut {
		fmt.Fprintln(out, "! "+text.Visible(pod, text.Page))
	}
	return nil
}

// errUnsettled ends a rehearsal that has no outcome in time.
var errUnsettled = errors.New("the time of the notice is over, and nth does not say what came of it")

// perform announces a spot interruption to an agent, and returns the outcome.
func (r *rehearsalRun) perform(ctx context.Context, rules policy.Settings, notice time.Duration, lines *timeline) (event.Outcome, error) {
	metadata, watched := standin.New(), make(chan struct{})
	endpoint, shut, err := serve(metadata)
	if err != nil {
		return "", err
	}
	defer shut()
	opts := metadataOptions(r.cfg, r.bootID, rules)
	opts.Endpoint = endpoint
	opts.Scoped = func(imds.Scope) { close(watched) }
	source, err := newSource(opts)
	if err != nil {
		return "", err
	}
	settled, ended := make(chan event.Outcome, 1), make(chan struct{})
	nth := r.agent(rules, source, lines, settled)
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
	lines.begin(ends)
	metadata.SetSpot("terminate", ends)
	select {
	case outcome := <-settled:
		return outcome, nil
	case <-time.After(notice + patience):
		return "", errUnsettled
	case <-ended: // ctx has ended, or the agent has failed.
		return "", failed
	}
}

// agent returns the daemon's agent without what reports to others or uses AWS. settled gets the outcome.
func (r *rehearsalRun) agent(rules policy.Settings, source *imds.Source, lines *timeline, settled chan<- event.Outcome) *agent.Agent {
	return agent.New(agent.Config{
		Sources:   []agent.Source{source},
		Node:      newLocalNode(r.borrowed, r.cfg, nil, nil),
		Identity:  warmIdentity{kubelet: r.borrowed, every: kube.WarmUp, found: func(identity.Identity) {}},
		Record:    record.InMemory(r.bootID, booted()),
		Policy:    rules,
		Unwatched: unwatched(rules, false),
		BootID:    r.bootID,
		Log:       lines.log(),
		DryRun:    r.cfg.DryRun,
		Settled: func(ev event.Event, outcome event.Outcome) {
			if ev.Kind == event.SpotInterruption && outcome != "" {
				select {
				case settled <- outcome:
				default: // It was sent before.
				}
			}
		},
		Listeners: []agent.Listener{lines},
	})
}

// patience is how long after the deadline a rehearsal waits for the outcome.
const patience = time.Minute

const introduction = `nth rehearses a spot interruption, with the settings in effect here: %s
The metadata service is simulated in this process. %s
`

// intro says what is real and what is not.
func (r *rehearsalRun) intro(place config.Place[config.Config, *config.Config], path string) string {
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
	return fmt.Sprintf(introduction, from, r.cluster)
}

// log returns a logger that writes lines of the timeline.
func (t *timeline) log() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(t.out)
	logger.SetFormatter(t)
	return logrus.NewEntry(logger)
}

// rehearsalRun is a rehearsal on this node, where nothing is changed, or in a made-up cluster.
type rehearsalRun struct {
	cfg      config.Config
	bootID   string
	borrowed *identity.Kubelet
	cluster  string // describes the cluster
	shut     func()
}

// identityLimit is how long a rehearsal waits for the identity.
const identityLimit = 15 * time.Second

// newRehearsal finds this node as the service does, or by a kubeconfig. If there is no identity and no kubeconfig was named, the cluster
// is made up. On a real node, the rehearsal is a dry run.
func (h hostInfo) newRehearsal(ctx context.Context, cfg config.Config, bootID, kubeconfig string) (*rehearsalRun, error) {
	if kubeconfig != "" {
		absolute, err := filepath.Abs(kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("finding the kubeconfig: %w", err)
		}
		cfg.Kubernetes.Kubeconfig, cfg.HostRoot = absolute, ""
	}
	metadata, err := checkedSource(cfg) // of this machine: the credential may need the instance's role
	if err != nil {
		return nil, err
	}
	borrowed := h.newKubelet(cfg, metadata, nil)
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

// makeUp makes up a cluster, as why says that there is no real one.
func makeUp(cfg config.Config, bootID string, why error) (*rehearsalRun, error) {
	url, shut, err := serve(rehearsal.New(bootID))
	if err != nil {
		return nil, err
	}
	cfg.DryRun = false // Nothing real can be harmed.
	borrowed := identity.New(identity.Options{
		ClientOptions: identity.ClientOptions{UserAgent: "nth-rehearse"},
		Read: func(context.Context) (string, []byte, error) {
			return "a kubeconfig that is made up", rehearsal.Kubeconfig(url), nil
		},
	})
	var words strings.Builder
	words.WriteString("So is the cluster.\n")
	if errors.Is(why, identity.ErrNotYet) {
		words.WriteString("This machine is not a Kubernetes node, so the node and its pods are simulated:\n")
	} else {
		fmt.Fprintf(&words, "The node and its pods are simulated, because this machine's own cannot be used: %s\n", text.Visible(why.Error(), text.Page))
	}
	for _, line := range rehearsal.Describe() {
		words.WriteString("\n  " + line)
	}
	return &rehearsalRun{cfg: cfg, bootID: bootID, borrowed: borrowed, cluster: words.String(), shut: shut}, nil
}

// serve serves on a free port of the loopback interface, until shut is called.
func serve(handler http.Handler) (url string, shut func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("opening a port for a stand-in: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // It returns when the server is closed.
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// timeline prints what nth logs as lines with the time since the notice and the time that is left, in ASCII, for any terminal:
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

// podTimes has when a pod was asked to end, and when it was gone, since the notice; zero if it was not.
type podTimes struct {
	asked, gone time.Duration
	deleted     bool
	heldBy      string
	held        time.Duration // since when
}

func newTimeline(out io.Writer, dry bool) *timeline {
	return &timeline{out: out, dry: dry, pods: map[string]*podTimes{}}
}

// begin notes that the notice is given now, and when the interruption is.
func (t *timeline) begin(ends time.Time) {
	t.mu.Lock()
	t.notice, t.ends = time.Now(), ends
	t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%7s  %8s\n", "time", "left")
	t.say(fmt.Sprintf("EC2 gives notice that it takes the machine in %.0f s", time.Until(ends).Seconds()))
}

// say prints a line.
func (t *timeline) say(said string) {
	line, _ := t.Format(&logrus.Entry{Message: said}) // It cannot fail.
	_, _ = t.out.Write(line)                          // The reader may have gone.
}

// end drops all further lines.
func (t *timeline) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// troubles are the messages that get a mark.
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
	mark, said := " ", strings.TrimSpace(entry.Message)
	if troubles[entry.Data[systemd.FieldMessageID]] {
		mark = "!"
	}
	if err, found := entry.Data[logrus.ErrorKey]; found {
		said += fmt.Sprintf(": %s", err)
	}
	said = text.Visible(said, text.Page)
	if t.notice.IsZero() {
		return fmt.Appendf(nil, "%7s  %8s  %s %s\n", "", "", mark, said), nil
	}
	left := max(time.Until(t.ends), 0)
	return fmt.Appendf(nil, "%5.1f s  %6.1f s  %s %s\n", time.Since(t.notice).Seconds(), left.Seconds(), mark, said), nil
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

// conclude prints the outcome, and returns the error to end the program with.
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
		fmt.Fprintln(t.out, "The node is left alone, as its annotation asks.")
	case event.OutOfTime:
		fmt.Fprintln(t.out, "The node is NOT drained in time. What is left would end with the machine.")
		return cli.ErrReported
	}
	return nil
}

// table has a line for each pod that had to go.
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
		b.WriteString(text.Visible(strings.TrimRight(line, " "), text.Page) + "\n")
	}
	return b.String() + "\n"
}

// note says what is remarkable about a pod.
func (p *podTimes) note() string {
	var notes []string
	by := p.heldBy
	if !strings.Contains(by, " ") { // It is a name, not the API server's reason.
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

// moment formats a time since the notice; "-" for zero.
func moment(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
