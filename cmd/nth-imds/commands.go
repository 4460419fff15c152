package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// act is what a command does with the simulator. It returns what was done, or what the command shows.
type act func(s *imdstest.Server, args []string) (string, error)

// performer performs the act of a command. In the process that serves, it calls the act; in others, it posts the command line there.
type performer func(cmd *cobra.Command, args []string, do act) error

// commands returns the commands that need a simulator. Both processes have them: one to read the command line, the other to run it.
func commands(perform performer) []*cobra.Command {
	command := func(use, short string, do act) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, args []string) error {
			return perform(cmd, args, do)
		}}
	}
	trigger := &cobra.Command{
		Use: "trigger", Short: "announce something", Long: `Announces what EC2 announces. Several announcements can stand at once; maintenance adds to what is scheduled.`,
		Args: func(*cobra.Command, []string) error {
			return errors.New("name one of spot, rebalance, maintenance, lifecycle")
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // Without it, cobra would print the help instead of the error of Args.
	}
	rebalance := command("rebalance", "a rebalance recommendation", func(s *imdstest.Server, _ []string) (string, error) {
		s.SetRebalance(time.Now())
		return "rebalance recommendation", nil
	})
	lifecycle := command("lifecycle STATE", "the target lifecycle state in the Auto Scaling group", func(s *imdstest.Server, args []string) (string, error) {
		s.SetLifecycleState(args[0])
		return "target lifecycle state: " + args[0], nil
	})
	lifecycle.ValidArgs = []string{
		"Detached", "InService", "Standby", "Terminated", "Warmed:Hibernated", "Warmed:Running", "Warmed:Stopped", "Warmed:Terminated",
	}
	lifecycle.Long = "Announces the state that Auto Scaling brings the instance into: " + strings.Join(lifecycle.ValidArgs, ", ") + "."
	lifecycle.Args = cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)
	trigger.AddCommand(triggerSpot(command), rebalance, triggerMaintenance(command), lifecycle)
	return []*cobra.Command{
		trigger, withdrawCommand(command), faultCommand(command),
		command("lift", "lift all faults; requests that hang are answered", func(s *imdstest.Server, _ []string) (string, error) {
			s.Lift()
			return "all faults lifted", nil
		}),
		command("expire-tokens", "make all tokens invalid that were handed out", func(s *imdstest.Server, _ []string) (string, error) {
			s.ExpireTokens()
			return "all tokens expired", nil
		}),
		command("show", "show what is announced, broken and asked for", show),
	}
}

// newCommand returns a command without arguments or flags, for a caller that adds some.
type newCommand func(use, short string, do act) *cobra.Command

// triggerSpot returns "trigger spot".
func triggerSpot(command newCommand) *cobra.Command {
	in, action := 2*time.Minute, "terminate"
	cmd := command("spot", "an interruption of a spot instance", func(s *imdstest.Server, _ []string) (string, error) {
		s.SetSpot(action, time.Now().Add(in))
		return fmt.Sprintf("spot interruption: %s %v after the notice", action, in), nil
	})
	duration(cmd, &in, "in", "how long after the notice EC2 acts (default 2m)")
	oneOf(cmd, &action, "action", "what EC2 does to the instance (default terminate)", "terminate", "stop", "hibernate")
	return cmd
}

// triggerMaintenance returns "trigger maintenance".
func triggerMaintenance(command newCommand) *cobra.Command {
	in, length := time.Hour, 2*time.Hour
	var event imdstest.MaintenanceEvent
	cmd := command("maintenance", "a scheduled event", func(s *imdstest.Server, _ []string) (string, error) {
		changed := slices.ContainsFunc(s.Scheduled(), func(e imdstest.MaintenanceEvent) bool { return e.EventId == event.EventId })
		if event.Code == "" && !changed {
			return "", errors.New("name what is scheduled, such as --code system-reboot")
		}
		if event.Code != "" { // An event that is only said to be over keeps its times.
			event.NotBefore = time.Now().Add(in)
			event.NotAfter = event.NotBefore.Add(length)
		}
		served := s.AddMaintenance(event)
		return fmt.Sprintf("maintenance %s: %s %s", served.EventId, served.State, served.Code), nil
	})
	oneOf(cmd, &event.Code, "code", "what is scheduled",
		"instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop")
	cmd.Flags().StringVar(&event.EventId, "id", "", "the event's ID; a scheduled one is changed (default: made up)")
	oneOf(cmd, &event.State, "state", "the last two also enter the history (default active)", "active", "canceled", "completed")
	duration(cmd, &in, "in", "how long after the notice EC2 acts (default 1h)")
	duration(cmd, &length, "for", "how long the maintenance takes (default 2h)")
	return cmd
}

// withdrawCommand returns "withdraw".
func withdrawCommand(command newCommand) *cobra.Command {
	var id string
	cmd := command("withdraw spot|rebalance|maintenance|lifecycle|all", "take back what was announced", func(s *imdstest.Server, args []string) (string, error) {
		const noHistory = false
		what := args[0]
		if what == "spot" || what == "all" {
			s.ClearSpot()
		}
		if what == "rebalance" || what == "all" {
			s.ClearRebalance()
		}
		if what == "lifecycle" || what == "all" {
			s.ClearLifecycleState()
		}
		if what == "maintenance" || what == "all" {
			if gone := s.WithdrawMaintenance(id, noHistory); len(gone) == 0 && id != "" {
				return "", fmt.Errorf("no maintenance event %q is scheduled", id)
			}
		}
		return map[string]string{
			"spot": "spot interruption withdrawn", "rebalance": "rebalance recommendation withdrawn", "all": "everything withdrawn",
			"lifecycle": "target lifecycle state withdrawn", "maintenance": "maintenance " + cmp.Or(id, "of all IDs") + " withdrawn",
		}[what], nil
	})
	cmd.Long = "Takes back what was announced. Maintenance leaves the schedule and enters the history as canceled, as on EC2."
	cmd.ValidArgs = []string{"spot", "rebalance", "maintenance", "lifecycle", "all"}
	cmd.Args = cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)
	cmd.Flags().StringVar(&id, "id", "", "only this maintenance event")
	return cmd
}

// faultCommand returns "fault".
func faultCommand(command newCommand) *cobra.Command {
	var f imdstest.Fault
	cmd := command("fault KIND", "break the service", func(s *imdstest.Server, _ []string) (string, error) {
		return "fault: " + s.Fault(f), nil
	})
	cmd.Long = `Breaks the service until "nth-imds lift". Several faults can be in force; a request meets the one set last.

  reset             begin an answer, then reset the connection
  hang              accept requests and answer them only once lifted
  slow              send the right answer byte by byte (--over)
  500, 503, ...     answer with this status
  garbage           answer 200 with what is no document
  oversized         answer 200 with 1 GiB

To refuse every token and hand out new ones: 401 --path meta-data. To break only the token endpoint: --path /latest/api/token.`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(1)(cmd, args); err != nil {
			return err
		}
		return setKind(&f, args[0])
	}
	cmd.Flags().StringVar(&f.Path, "path", "", "only what lies below this path, such as /latest/meta-data/spot")
	duration(cmd, &f.For, "for", "lift it after so long")
	duration(cmd, &f.Over, "over", "how long a slow answer takes (default 30s)")
	return cmd
}

// setKind sets what a fault does, from the command's argument: one of the kinds, or a status to answer with.
func setKind(f *imdstest.Fault, kind string) error {
	for _, known := range imdstest.Kinds() {
		if kind == string(known) && known != imdstest.Status {
			f.Kind = known
			return nil
		}
	}
	status, err := strconv.Atoi(kind)
	if err != nil || status < 400 || status > 599 {
		return fmt.Errorf("%q is no fault: want reset, hang, slow, garbage, oversized, or a status from 400 to 599", kind)
	}
	f.Kind, f.Status = imdstest.Status, status
	return nil
}

// show describes what the simulator announces, its faults, and the requests that it has had.
func show(s *imdstest.Server, _ []string) (string, error) {
	var b strings.Builder
	b.WriteString("announced:")
	announced := s.Announced()
	if len(announced) == 0 {
		b.WriteString(" nothing")
	}
	for _, path := range slices.Sorted(maps.Keys(announced)) {
		fmt.Fprintf(&b, "\n  %s\n    %s", path, strings.ReplaceAll(announced[path], "\n", "\n    "))
	}
	b.WriteString("\nfaults:")
	faults := s.Faults()
	if len(faults) == 0 {
		b.WriteString(" none")
	}
	for _, fault := range faults {
		b.WriteString("\n  " + fault.String())
	}
	r := s.Requests()
	fmt.Fprintf(&b, "\nrequests: %d, at most %d at once, %d of them for tokens", r.Total, r.MostInFlight, r.Tokens)
	for _, status := range slices.Sorted(maps.Keys(r.ByStatus)) {
		fmt.Fprintf(&b, "\n  %6d answered %d", r.ByStatus[status], status)
	}
	for _, path := range slices.Sorted(maps.Keys(r.ByPath)) {
		fmt.Fprintf(&b, "\n  %6d %s", r.ByPath[path], path)
	}
	return b.String(), nil
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

// oneOf defines a flag that takes one of a few words.
func oneOf(cmd *cobra.Command, at *string, name, usage string, words ...string) {
	cli.Flag(cmd, name, "WORD", strings.Join(words, ", ")+": "+usage, func(text string) error {
		if *at = text; !slices.Contains(words, text) {
			return fmt.Errorf("want one of %s", strings.Join(words, ", "))
		}
		return nil
	})
}
