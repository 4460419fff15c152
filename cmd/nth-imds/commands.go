package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// spotNotice is how long before an interruption EC2 gives notice.
const spotNotice = 2 * time.Minute

func trigger(ctx context.Context, args []string, out io.Writer) error {
	what, rest, err := subject("trigger", triggerUsage, args)
	if err != nil {
		return err
	}
	s := newRemote("trigger "+what, triggerUsage).delayable()
	switch what {
	case "spot":
		return triggerSpot(ctx, s, rest, out)
	case "rebalance":
		return s.run(ctx, rest, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerRebalance(ctx)
		})
	case "maintenance":
		return triggerMaintenance(ctx, s, rest, out)
	case "lifecycle":
		words, err := s.parse(rest, "STATE")
		if err != nil {
			return err
		}
		return s.call(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerLifecycle(ctx, words[0])
		})
	default:
		return usageError{fmt.Sprintf("trigger: %q can't be announced: want spot, rebalance, maintenance or lifecycle", what)}
	}
}

func triggerSpot(ctx context.Context, s *remote, args []string, out io.Writer) error {
	in := spotNotice
	s.duration(&in, "in")
	action := s.String("action", "terminate", "")
	return s.run(ctx, args, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		return c.TriggerSpot(ctx, *action, in)
	})
}

func triggerMaintenance(ctx context.Context, s *remote, args []string, out io.Writer) error {
	var m imdstest.Maintenance
	s.StringVar(&m.Code, "code", "", "")
	s.StringVar(&m.ID, "id", "", "")
	s.StringVar(&m.State, "state", "", "")
	s.duration(&m.In, "in")
	s.duration(&m.For, "for")
	return s.run(ctx, args, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		return c.TriggerMaintenance(ctx, m)
	})
}

func withdraw(ctx context.Context, args []string, out io.Writer) error {
	what, rest, err := subject("withdraw", withdrawUsage, args)
	if err != nil {
		return err
	}
	s := newRemote("withdraw "+what, withdrawUsage)
	switch what {
	case "maintenance":
		id := s.String("id", "", "")
		noHistory := s.Bool("no-history", false, "")
		return s.delayable().run(ctx, rest, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.WithdrawMaintenance(ctx, *id, *noHistory)
		})
	case "spot", "rebalance", "lifecycle", "all":
		return s.delayable().run(ctx, rest, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.Withdraw(ctx, what)
		})
	default:
		return usageError{fmt.Sprintf("withdraw: %q is nothing that is announced: want spot, rebalance, maintenance, lifecycle or all", what)}
	}
}

// subject splits off the first word of args, which says what a command is about, and on which its flags depend.
func subject(name, usage string, args []string) (what string, rest []string, err error) {
	switch {
	case len(args) == 0:
		return "", nil, usageError{fmt.Sprintf("%s: what? See \"nth-imds help %s\"", name, name)}
	case isHelp(args[0]):
		return "", nil, helpRequest{usage}
	}
	return args[0], args[1:], nil
}

func fault(ctx context.Context, args []string, out io.Writer) error {
	var f imdstest.Fault
	s := newRemote("fault", faultUsage).delayable()
	s.StringVar(&f.Path, "path", "", "")
	s.duration(&f.For, "for")
	s.duration(&f.Over, "over")
	s.IntVar(&f.Status, "status", 0, "")
	s.IntVar(&f.Times, "times", 0, "")
	words, err := s.parse(args, "KIND")
	if err != nil {
		return err
	}
	if err := setKind(&f, words[0]); err != nil {
		return err
	}
	return s.call(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		return c.Fault(ctx, f)
	})
}

// setKind parses the kind of a fault, or a status to answer with.
func setKind(f *imdstest.Fault, word string) error {
	for _, kind := range imdstest.Kinds() {
		if word == string(kind) && kind != imdstest.Status {
			f.Kind = kind
			return nil
		}
	}
	status, err := strconv.Atoi(word)
	if err != nil || status < 400 || status > 599 {
		return usageError{fmt.Sprintf(
			"fault: %q is no fault: want reset, hang, slow, garbage, oversized, token-down, refuse, or a status from 400 to 599", word)}
	}
	f.Kind, f.Status = imdstest.Status, status
	return nil
}

func lift(ctx context.Context, args []string, out io.Writer) error {
	s := newRemote("lift", liftUsage).delayable()
	return s.run(ctx, args, out, func(ctx context.Context, c imdstest.Client) (string, error) { return c.Lift(ctx) })
}

func expireTokens(ctx context.Context, args []string, out io.Writer) error {
	s := newRemote("expire-tokens", expireUsage).delayable()
	return s.run(ctx, args, out, func(ctx context.Context, c imdstest.Client) (string, error) { return c.ExpireTokens(ctx) })
}

func show(ctx context.Context, args []string, out io.Writer) error {
	s := newRemote("show", showUsage)
	raw := s.Bool("json", false, "")
	return s.run(ctx, args, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		state, err := c.State(ctx)
		if err != nil {
			return "", err
		}
		if *raw {
			text, err := json.MarshalIndent(state, "", "  ")
			return string(text), err
		}
		return render(state), nil
	})
}

// render writes a State for people.
func render(state imdstest.State) string {
	var b strings.Builder
	b.WriteString("announced:")
	if len(state.Announced) == 0 {
		b.WriteString(" nothing")
	}
	for _, path := range slices.Sorted(maps.Keys(state.Announced)) {
		fmt.Fprintf(&b, "\n  %s\n    %s", path, strings.ReplaceAll(state.Announced[path], "\n", "\n    "))
	}
	renderList(&b, "waiting", state.Waiting)
	renderList(&b, "faults", state.Faults)
	r := state.Requests
	fmt.Fprintf(&b, "\ntokens: %d valid, %d asked for", state.ValidTokens, r.Tokens)
	fmt.Fprintf(&b, "\nrequests: %d, at most %d at once", r.Total, r.MostInFlight)
	for _, status := range slices.Sorted(maps.Keys(r.ByStatus)) {
		fmt.Fprintf(&b, "\n  %6d answered %d", r.ByStatus[status], status)
	}
	for _, path := range slices.Sorted(maps.Keys(r.ByPath)) {
		fmt.Fprintf(&b, "\n  %6d %s", r.ByPath[path], path)
	}
	return b.String()
}

func renderList(b *strings.Builder, title string, lines []string) {
	fmt.Fprintf(b, "\n%s:", title)
	if len(lines) == 0 {
		b.WriteString(" none")
	}
	for _, line := range lines {
		b.WriteString("\n  " + line)
	}
}

const defaultServer = "http://" + defaultListen

// callTimeout is how long a simulator may take to answer.
const callTimeout = 10 * time.Second

// remote has the flags of the commands that control another nth-imds.
type remote struct {
	flags
	server string
	after  time.Duration
}

func newRemote(name, usage string) *remote {
	s := &remote{flags: newFlags(name, usage)}
	s.StringVar(&s.server, "server", cmp.Or(os.Getenv("NTH_IMDS"), defaultServer), "")
	return s
}

// delayable adds the flag --after.
func (s *remote) delayable() *remote {
	s.duration(&s.after, "after")
	return s
}

// run parses flags without words after them, and calls the simulator.
func (s *remote) run(ctx context.Context, args []string, out io.Writer, f func(context.Context, imdstest.Client) (string, error)) error {
	if _, err := s.parse(args); err != nil {
		return err
	}
	return s.call(ctx, out, f)
}

// call calls the simulator and prints its answer.
func (s *remote) call(ctx context.Context, out io.Writer, f func(context.Context, imdstest.Client) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	server := s.server
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	text, err := f(ctx, imdstest.Client{URL: server, After: s.after})
	if err != nil {
		return s.explain(err)
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

// explain adds what to do about an error.
func (s *remote) explain(err error) error {
	var unreachable *url.Error
	if errors.As(err, &unreachable) {
		return fmt.Errorf("%s: no simulator answers at %s (%w): start one with \"nth-imds\", or name it with --server or NTH_IMDS",
			s.Name(), s.server, unreachable.Err)
	}
	return fmt.Errorf("%s: %w", s.Name(), err)
}
