package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/standin"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/rehearsal"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// shortestNotice is the shortest --deadline. EC2's notices are in whole seconds, and a drain needs some of them.
const shortestNotice = 5 * time.Second

// rehearseCommand returns "nth rehearse".
func (h hostInfo) rehearseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rehearse", Short: "show what a spot interruption would do, change nothing",
		Long: `Shows what nth does when EC2 takes this machine back, with the settings in effect. It changes nothing.
On a node it lists the pods that would have to go, how long they get, and the disruption budgets that hold
them. Elsewhere it needs no rights: it drains the node of a simulated cluster, after a simulated notice.
The exit status is 0 if that node was drained in time, or need not be by the settings, and 1 if not.`,
	}
	path := h.settings().ConfigFlag(cmd)
	notice := cmd.Flags().Duration("deadline", daemon.SpotNotice, "how long the notice is, from 5s")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *notice < shortestNotice || *notice > daemon.SpotNotice {
			return fmt.Errorf("--deadline must be from %s to %s, the longest spot notice", shortestNotice, daemon.SpotNotice)
		}
		return cobra.NoArgs(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		checks.Hush()
		l, err := h.settings().Load(*path)
		if err != nil {
			return err
		}
		ctx, stop := daemon.UntilSignal(cmd.Context())
		defer stop()
		return h.rehearse(ctx, l, *notice, cmd.OutOrStdout())
	}
	return cmd
}

// rehearse prints what a spot notice of that length would do. On a real node it lists the pods. Elsewhere it drains a simulated node, and prints
// each step as it happens.
func (h hostInfo) rehearse(ctx context.Context, l config.Loaded[config.Config], notice time.Duration, out io.Writer) error {
	cfg, from := l.Config, "the defaults"
	if len(l.Files) > 0 {
		from = strings.Join(l.Files, ", ")
	}
	looking, cancel := context.WithTimeout(ctx, identityLimit)
	defer cancel()
	id, err := h.newKubelet(cfg, nil).Identity(looking)
	isReal := err == nil
	where := fmt.Sprintf("Node %s, at %s, is real: nothing is changed there.", id.Node, id.Server)
	switch {
	case errors.Is(err, identity.ErrNotYet):
		where = "EC2 and the cluster are simulated: this machine is not a Kubernetes node."
	case err != nil: // There is a credential, but the API server is out of reach or refuses it.
		where = "EC2 and the cluster are simulated: the credential here cannot be used: " + text.Visible(err.Error(), text.Page)
	}
	fmt.Fprintln(out, wrap("nth rehearses a spot interruption; settings in effect: "+from, 0))
	fmt.Fprintln(out, wrap(where, 0))
	if !isReal {
		fmt.Fprintln(out, "\n  "+strings.Join(rehearsal.Describe(), "\n  "))
	}
	switch action := policyOf(cfg)[event.SpotInterruption].Action; {
	case action == policy.Ignore:
		fmt.Fprintf(out, "\nNothing would be done: events.%s.action is %q.\n", event.SpotInterruption, action)
		return nil
	case isReal && action != policy.Drain: // No pod would go. A simulation shows the cordon, if there is one.
		fmt.Fprintln(out, "\n"+undrained(action))
		return nil
	}
	if cfg.DryRun {
		fmt.Fprintln(out, "\nThe service would only log this: dry_run is true.")
	}
	if isReal {
		const isSpotNotice = true
		return listPods(ctx, cfg, id, notice, isSpotNotice, out)
	}
	return simulate(ctx, cfg, notice, &timeline{out: out})
}

// identityLimit is how long a rehearsal looks for the kubelet's identity.
const identityLimit = 15 * time.Second

// listPods prints a table of the pods that a drain would evict from a real node, and how long the drain would take. left is the time for the
// drain. isSpotNotice says that EC2 takes the machine then, so that pods which a budget still holds are deleted before.
func listPods(ctx context.Context, cfg config.Config, id identity.Identity, left time.Duration, isSpotNotice bool, out io.Writer) error {
	node := drain.New(id.Client, id.Node, drainOptions(cfg))
	if optedOut, err := node.OptedOut(ctx); err != nil {
		return err
	} else if optedOut {
		fmt.Fprintln(out, "\n"+wrap("Its pods would be left alone: the annotation "+drain.ActionAnnotation+" on the Node asks for that.", 0))
		return nil
	}
	f, err := node.Forecast(ctx, left)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	if len(f.Pods) > 0 {
		fmt.Fprintln(table, "  pod\towner\tgrace\theld by budget\temptyDir")
	}
	stuck := false // a budget holds a pod
	for _, pod := range f.Pods {
		budget, err := node.HeldBy(ctx, pod)
		if err != nil {
			return err
		}
		held, isCut := budget != "", pod.Gets < pod.Grace
		stuck = stuck || held
		mark, grace, emptyDir := " ", fmt.Sprintf("%.0f s", pod.Grace.Seconds()), ""
		if isCut || held {
			mark = "!"
		}
		if isCut {
			grace = fmt.Sprintf("%.0f of %s", pod.Gets.Seconds(), grace)
		}
		if pod.EmptyDir {
			emptyDir = "lost"
		}
		owner := text.Visible(cmp.Or(pod.Owner, "none"), text.Line)
		fmt.Fprintf(table, "%s %s\t%s\t%s\t%s\t%s\n", mark, pod.Pod, owner, grace, text.Visible(budget, text.Line), emptyDir)
	}
	_ = table.Flush() // An error is that of standard output, which is ignored elsewhere, too.
	if len(f.Pods) > 0 {
		fmt.Fprintln(out)
	}
	switch {
	case stuck && isSpotNotice:
		fmt.Fprintln(out, wrap("A budget refuses an eviction now. nth deletes a pod that it still holds when only the pod's grace period is left.", 0))
	case stuck:
		fmt.Fprintln(out, wrap("A budget refuses an eviction now. Pods that it holds stay: nth drain deletes no pod.", 0))
	}
	fmt.Fprintln(out, wrap("By the grace periods, "+describeForecast(f, left, isSpotNotice)+".", 0))
	return nil
}

// patience is how long after the deadline a rehearsal waits for the outcome.
const patience = time.Minute

// simulate runs an agent as the daemon has it, but without webhook, Kubernetes Events, logind and AWS. The agent's node is in a simulated cluster. A
// simulated metadata service announces a spot interruption once the agent polls it. simulate returns cli.ErrReported if the node was not drained
// in time.
func simulate(ctx context.Context, cfg config.Config, notice time.Duration, lines *timeline) error {
	cfg.DryRun = false // Nothing real can be harmed.
	bootID, err := record.BootID("/")
	if err != nil {
		return err
	}
	kubelet, shutCluster, err := simulateCluster(bootID)
	if err != nil {
		return err
	}
	defer shutCluster()
	metadata, polled := standin.New(), make(chan struct{}) // polled is closed when the agent polls the metadata service
	endpoint, shutMetadata, err := serve(metadata)
	if err != nil {
		return err
	}
	defer shutMetadata()
	rules := policyOf(cfg)
	options := metadataOptions(cfg, bootID, rules)
	options.Endpoint = endpoint
	closePolled := sync.OnceFunc(func() { close(polled) })
	options.Observe = func(imds.Poll) { closePolled() }
	source, err := newSource(options)
	if err != nil {
		return err
	}
	settled, ended := make(chan event.Outcome, 1), make(chan struct{})
	const shutdowns = false // No source asks logind about shutdowns.
	nth := agent.New(agent.Config{
		Sources:   []agent.Source{source},
		Node:      newLocalNode(kubelet, cfg, nil, nil),
		Identity:  warmIdentity{kubelet: kubelet, found: func(identity.Identity) {}},
		Record:    record.InMemory(bootID, booted()),
		Policy:    rules,
		Unwatched: unwatched(rules, shutdowns),
		BootID:    bootID,
		Log:       lines.log(),
		Settled:   firstOutcome(settled),
	})
	running, stop := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		nth.Run(running)
	}()
	defer func() { stop(); <-ended }()
	select {
	case <-polled:
	case <-ended:
		return fmt.Errorf("rehearsal interrupted before the simulated spot notice: %w", context.Cause(ctx))
	}
	ends := time.Now().Add(notice).Round(time.Second)
	lines.begin(ends)
	metadata.SetSpot("terminate", ends)
	select {
	case outcome := <-settled:
		return lines.conclude(outcome, rules)
	case <-time.After(notice + patience):
		return errors.New("the time of the notice is over, and nth has not reported whether the node is drained")
	case <-ended:
		return fmt.Errorf("rehearsal interrupted during the simulated drain: %w", context.Cause(ctx))
	}
}

// firstOutcome returns a function for agent.Config.Settled. That function sends the first outcome of the spot interruption to the channel, which has
// room for one.
func firstOutcome(to chan<- event.Outcome) func(event.Event, event.Outcome) {
	return func(ev event.Event, outcome event.Outcome) {
		if ev.Kind == event.SpotInterruption && outcome != "" { // "" means that the drain has not ended.
			select {
			case to <- outcome:
			default: // An outcome was sent before.
			}
		}
	}
}

// simulateCluster serves a simulated cluster until shut is called. It returns the source of the identity that the kubelet of its node has.
func simulateCluster(bootID string) (kubelet *identity.Kubelet, shut func(), err error) {
	url, shut, err := serve(rehearsal.New(bootID))
	if err != nil {
		return nil, nil, err
	}
	return identity.New(identity.Options{
		ClientOptions: identity.ClientOptions{UserAgent: "nth-rehearse"}, Document: rehearsal.Kubeconfig(url),
	}), shut, nil
}

// serve answers HTTP requests with handler, on a free port of the loopback interface, until shut is called.
func serve(handler http.Handler) (url string, shut func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listening on 127.0.0.1 for the simulated cluster or metadata service: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // It returns when the server is closed.
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}

// timeline prints what nth logs as lines of 80 columns with the time since the notice and the time that is left, in ASCII:
//
//	 time      left
//	0.5 s   119.4 s    cordoned the node in 4ms
//	0.5 s   119.4 s  ! disruption budget web blocks the eviction of default/web-2; retrying
//
// Until begin, its lines have no times. It is a logrus.Formatter, and safe for concurrent use.
type timeline struct {
	out io.Writer

	mu     sync.Mutex
	notice time.Time // when the notice was given; zero before
	ends   time.Time // when EC2 would take the machine
	over   bool      // the outcome was printed, and nothing more is
}

// log returns a logger that writes lines of the timeline.
func (t *timeline) log() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(t.out)
	logger.SetFormatter(t)
	return logrus.NewEntry(logger)
}

// begin prints the head of the timeline, and starts the times of its lines. It is called when the notice is given. ends is when EC2 takes the machine.
func (t *timeline) begin(ends time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notice, t.ends = time.Now(), ends
	fmt.Fprintf(t.out, "\n%7s  %8s\n", "time", "left")
}

// troubles are the IDs of the messages that the timeline marks with "!".
var troubles = map[any]bool{
	systemd.PodHeld: true, systemd.PodDeleted: true, systemd.DrainIncomplete: true, systemd.DrainLeft: true, systemd.CordonFailed: true,
	systemd.SourceTrouble: true, systemd.IdentityWaiting: true, systemd.StateTrouble: true,
}

// terminalWidth is how many columns a line of a rehearsal has at most, and timesWidth those before its text.
const (
	terminalWidth = 80
	timesWidth    = 21
)

// Format implements logrus.Formatter. It drops the message that the event is announced: the next message says what nth does about it.
func (t *timeline) Format(entry *logrus.Entry) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || entry.Data[systemd.FieldMessageID] == systemd.EventSeen {
		return nil, nil // No line is written.
	}
	mark, id := " ", entry.Data[systemd.FieldMessageID]
	if troubles[id] || id == systemd.PodEvicted && entry.Level == logrus.WarnLevel { // Such an eviction cuts a grace period.
		mark = "!"
	}
	times := strings.Repeat(" ", timesWidth-len("  ! ")) // before the notice
	if !t.notice.IsZero() {
		times = fmt.Sprintf("%5.1f s  %6.1f s", time.Since(t.notice).Seconds(), max(time.Until(t.ends), 0).Seconds())
	}
	line := wrap(text.Visible(strings.TrimSpace(entry.Message), text.Page), timesWidth)
	return fmt.Appendf(nil, "%s  %s %s\n", times, mark, line), nil
}

// wrap breaks a line between words so that it fits a terminal. The caller prints the first line at the column indent, to which wrap indents the
// others.
func wrap(line string, indent int) string {
	var b strings.Builder
	column := indent
	for i, word := range strings.Fields(line) {
		switch {
		case i == 0: // Nothing separates the first word.
		case column+1+len(word) > terminalWidth:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// undrained returns the sentence which says that the settings ask for no drain, only for action.
func undrained(action policy.Action) string {
	return wrap(fmt.Sprintf("The node is not drained, since the settings do not ask for it: events.%s.action is %q.", event.SpotInterruption, action), 0)
}

// conclude ends the timeline, and prints what nth has not logged about the outcome. It returns cli.ErrReported if the node was not drained in time.
func (t *timeline) conclude(outcome event.Outcome, rules policy.Settings) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true // The agent is stopped next, and what it logs then is of no interest.
	switch outcome {
	case event.NoDrain:
		fmt.Fprintln(t.out, "\n"+undrained(rules[event.SpotInterruption].Action))
	case event.OutOfTime:
		fmt.Fprintln(t.out, "\nThe node is NOT drained in time. What is left would end with the machine.")
		return cli.ErrReported
	case event.Drained, event.LeftAlone: // nth has logged it.
	}
	return nil
}
