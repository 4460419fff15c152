package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// action is what a command does to the simulator s. It returns a line that says what was done, or what the command shows.
type action func(s *imdstest.Server, args []string) (string, error)

// performer performs the action of a command. In the simulator, it calls the action. In another process, it posts the command line to the
// simulator, and does not call the action.
type performer func(cmd *cobra.Command, args []string, do action) error

// commands returns the commands that need a simulator: trigger, withdraw and show. Each process has them: a process with a command to check its
// command line and to show help, the simulator to run what is posted.
func commands(perform performer) []*cobra.Command {
	command := func(use, short string, do action) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, args []string) error {
			return perform(cmd, args, do)
		}}
	}
	trigger := &cobra.Command{
		Use: "trigger", Short: "announce something", Long: `Announces what EC2 announces. Several announcements can stand at once; maintenance adds to what is scheduled.`,
		Args: func(*cobra.Command, []string) error {
			return errors.New("name one of spot, rebalance, maintenance, lifecycle")
		},
		RunE: func(*cobra.Command, []string) error { return nil }, // For a command without RunE, cobra prints the help and ignores Args.
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
		trigger, withdrawCommand(command), command("show", "show what is announced and asked for", show),
	}
}

// newCommand returns a command without arguments or flags. Callers add them.
type newCommand func(use, short string, do action) *cobra.Command

// triggerSpot returns "trigger spot".
func triggerSpot(command newCommand) *cobra.Command {
	in, what := 2*time.Minute, "terminate"
	cmd := command("spot", "an interruption of a spot instance", func(s *imdstest.Server, _ []string) (string, error) {
		s.SetSpot(what, time.Now().Add(in))
		return fmt.Sprintf("spot interruption: %s %v after the notice", what, in), nil
	})
	duration(cmd, &in, "in", "how long after the notice EC2 acts (default 2m)")
	oneOf(cmd, &what, "action", "what EC2 does to the instance (default terminate)", "terminate", "stop", "hibernate")
	return cmd
}

// triggerMaintenance returns "trigger maintenance". It schedules an event, or changes a scheduled one if --id names it.
func triggerMaintenance(command newCommand) *cobra.Command {
	in, length := time.Hour, 2*time.Hour
	var event imdstest.MaintenanceEvent
	cmd := command("maintenance", "a scheduled event", func(s *imdstest.Server, _ []string) (string, error) {
		scheduled := slices.ContainsFunc(s.Scheduled(), func(e imdstest.MaintenanceEvent) bool { return e.EventId == event.EventId })
		if event.Code == "" && !scheduled {
			return "", errors.New("name what is scheduled, such as --code system-reboot")
		}
		if event.Code != "" { // Without --code only the state of the scheduled event changes, and not its times.
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

// show is the action of "show". It describes what the simulator announces, and counts the requests that it has answered.
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
	r := s.Requests()
	fmt.Fprintf(&b, "\nrequests: %d, %d of them for tokens", r.Total, r.Tokens)
	for _, status := range slices.Sorted(maps.Keys(r.ByStatus)) {
		fmt.Fprintf(&b, "\n  %6d answered %d", r.ByStatus[status], status)
	}
	for _, path := range slices.Sorted(maps.Keys(r.ByPath)) {
		fmt.Fprintf(&b, "\n  %6d %s", r.ByPath[path], path)
	}
	return b.String(), nil
}

// duration adds a flag for a duration that is not negative. The flag sets *d.
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

// oneOf adds a flag that takes one of a few words. The flag sets *word.
func oneOf(cmd *cobra.Command, word *string, name, usage string, words ...string) {
	cli.Flag(cmd, name, "WORD", strings.Join(words, ", ")+": "+usage, func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("want one of %s", strings.Join(words, ", "))
		}
		*word = text
		return nil
	})
}
