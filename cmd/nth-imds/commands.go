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
		trigger, withdrawCommand(command), command("show", "show what is announced and asked for", show),
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

// show describes what the simulator announces, and the requests that it has had.
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
