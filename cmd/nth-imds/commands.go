package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// spotNotice is how long before an interruption EC2 gives notice.
const spotNotice = 2 * time.Minute

func triggerCommand() *cobra.Command {
	trigger := &cobra.Command{
		Use: "trigger", Short: "announce something", Long: `Announces what EC2 announces. Several announcements can stand at once; maintenance adds to what is scheduled.`,
		Args: func(*cobra.Command, []string) error {
			return errors.New("name one of spot, rebalance, maintenance, lifecycle")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	in, action := spotNotice, ""
	spot := remote("spot", "an interruption of a spot instance", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		return c.TriggerSpot(ctx, action, in)
	})
	duration(spot, &in, "in", "how long after the notice EC2 acts (default 2m)")
	spot.Flags().StringVar(&action, "action", "terminate", "what EC2 does to the instance: terminate, stop or hibernate")
	var m imdstest.Maintenance
	maintenance := remote("maintenance", "a scheduled event", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		return c.TriggerMaintenance(ctx, m)
	})
	maintenance.Flags().StringVar(&m.Code, "code", "", "instance-reboot, system-reboot, system-maintenance, instance-retirement or instance-stop")
	maintenance.Flags().StringVar(&m.ID, "id", "", "the event's ID; a scheduled one is changed, and keeps what is not given (default: made up)")
	maintenance.Flags().StringVar(&m.State, "state", "", "active, canceled or completed; the last two also enter the history (default active)")
	duration(maintenance, &m.In, "in", "how long after the notice EC2 acts (default 1h)")
	duration(maintenance, &m.For, "for", "how long the maintenance takes (default 2h)")
	lifecycle := remote("lifecycle STATE", "the target lifecycle state in the Auto Scaling group", func(ctx context.Context, c imdstest.Client, args []string) (string, error) {
		return c.TriggerLifecycle(ctx, args[0])
	})
	lifecycle.Long = `Announces the state that Auto Scaling brings the instance into: Detached, InService, Standby, Terminated,
Warmed:Hibernated, Warmed:Running, Warmed:Stopped or Warmed:Terminated.`
	lifecycle.Args = cobra.ExactArgs(1)
	rebalance := remote("rebalance", "a rebalance recommendation", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		return c.TriggerRebalance(ctx)
	})
	trigger.AddCommand(spot, rebalance, maintenance, lifecycle)
	return trigger
}

func withdrawCommand() *cobra.Command {
	var id string
	var noHistory bool
	cmd := remote("withdraw spot|rebalance|maintenance|lifecycle|all", "take back what was announced", func(ctx context.Context, c imdstest.Client, args []string) (string, error) {
		if args[0] == "maintenance" {
			return c.WithdrawMaintenance(ctx, id, noHistory)
		}
		return c.Withdraw(ctx, args[0])
	})
	cmd.Long = `Takes back what was announced. Maintenance leaves the schedule and enters the history as canceled, as on EC2.
"all" also drops changes that still wait for their --after.`
	cmd.ValidArgs = []string{"spot", "rebalance", "maintenance", "lifecycle", "all"}
	cmd.Args = cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)
	cmd.Flags().StringVar(&id, "id", "", "only this maintenance event")
	cmd.Flags().BoolVar(&noHistory, "no-history", false, "let maintenance just disappear")
	return cmd
}

func faultCommand() *cobra.Command {
	var f imdstest.Fault
	cmd := remote("fault KIND", "break the service", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		return c.Fault(ctx, f)
	})
	cmd.Long = `Breaks the service until "nth-imds lift". Several faults can be in force; a request meets the one set last.

  reset             begin an answer, then reset the connection
  hang              accept requests and answer them only once lifted
  slow              send the right answer byte by byte (--over)
  500, 503, ...     answer with this status
  401               refuse every token, though new ones are handed out
  garbage           answer 200 with random bytes
  oversized         answer 200 with 1 GiB
  token-down        answer only requests for tokens with an error (--status);
                    for a token endpoint that hangs: hang --path /latest/api/token
  refuse            close the port; needs --for, because nobody could lift it`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(1)(cmd, args); err != nil {
			return err
		}
		return setKind(&f, args[0])
	}
	cmd.Flags().StringVar(&f.Path, "path", "", "only what lies below this path, such as /latest/meta-data/spot")
	duration(cmd, &f.For, "for", "lift it after so long")
	duration(cmd, &f.Over, "over", "how long a slow answer takes (default 30s)")
	cmd.Flags().IntVar(&f.Status, "status", 0, "the status of token-down (default 500)")
	cmd.Flags().IntVar(&f.Times, "times", 0, "break only the next so many requests")
	return cmd
}

// setKind parses the kind of a fault, or a status to answer with.
func setKind(f *imdstest.Fault, kind string) error {
	for _, known := range imdstest.Kinds() {
		if kind == string(known) && known != imdstest.Status {
			f.Kind = known
			return nil
		}
	}
	status, err := strconv.Atoi(kind)
	if err != nil || status < 400 || status > 599 {
		return fmt.Errorf("%q is no fault: want reset, hang, slow, garbage, oversized, token-down, refuse, or a status from 400 to 599", kind)
	}
	f.Kind, f.Status = imdstest.Status, status
	return nil
}

func liftCommand() *cobra.Command {
	return remote("lift", "lift all faults; requests that hang are answered", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		return c.Lift(ctx)
	})
}

func expireTokensCommand() *cobra.Command {
	return remote("expire-tokens", "make all tokens invalid that were handed out", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		return c.ExpireTokens(ctx)
	})
}

func showCommand() *cobra.Command {
	var raw bool
	cmd := remote("show", "show what is announced, broken and asked for", func(ctx context.Context, c imdstest.Client, _ []string) (string, error) {
		state, err := c.State(ctx)
		if err != nil {
			return "", err
		}
		if raw {
			text, err := json.MarshalIndent(state, "", "  ")
			return string(text), err
		}
		return render(state), nil
	})
	cmd.Flags().BoolVar(&raw, "json", false, "print JSON")
	return cmd
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

// remote returns a command that calls another nth-imds, which serves, and prints the answer.
func remote(use, short string, call func(ctx context.Context, c imdstest.Client, args []string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs}
	server := cmd.Flags().String("server", cmp.Or(os.Getenv("NTH_IMDS"), defaultServer), "the URL of the simulator, or $NTH_IMDS")
	var after time.Duration
	duration(cmd, &after, "after", "wait so long before the change")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
		defer cancel()
		address := *server
		if !strings.Contains(address, "://") {
			address = "http://" + address
		}
		text, err := call(ctx, imdstest.Client{URL: address, After: after}, args)
		if unreachable, ok := errors.AsType[*url.Error](err); ok {
			return fmt.Errorf("no simulator answers at %s (%w): start one with \"nth-imds\", or name it with --server or NTH_IMDS", *server, unreachable.Err)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}

// duration defines a flag for a duration that is not negative.
func duration(cmd *cobra.Command, d *time.Duration, name, usage string) {
	cli.Flag(cmd, name, "DURATION", usage, func(text string) error {
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed < 0 {
			return errors.New("want a duration such as 90s or 2m")
		}
		*d = parsed
		return nil
	})
}
