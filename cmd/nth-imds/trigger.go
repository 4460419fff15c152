package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// spotNotice is how long before it acts EC2 gives notice.
const spotNotice = 2 * time.Minute

// trigger announces something.
func trigger(ctx context.Context, args []string, out io.Writer) error {
	what, rest, err := subject("trigger", triggerUsage, args)
	if err != nil {
		return err
	}
	s := newSteering("trigger "+what, triggerUsage).canWait()
	switch what {
	case "spot":
		return triggerSpot(ctx, s, rest, out)
	case "rebalance":
		if _, err := s.parse(rest); err != nil {
			return err
		}
		return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerRebalance(ctx)
		})
	case "maintenance":
		return triggerMaintenance(ctx, s, rest, out)
	case "lifecycle":
		words, err := s.parse(rest, "STATE")
		if err != nil {
			return err
		}
		return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.TriggerLifecycle(ctx, words[0])
		})
	default:
		return usageError{fmt.Sprintf("trigger: %q can't be announced: want spot, rebalance, maintenance or lifecycle", what)}
	}
}

func triggerSpot(ctx context.Context, s *steering, args []string, out io.Writer) error {
	in := spotNotice
	s.duration(&in, "in")
	action := s.String("action", "terminate", "")
	if _, err := s.parse(args); err != nil {
		return err
	}
	return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		return c.TriggerSpot(ctx, *action, in)
	})
}

func triggerMaintenance(ctx context.Context, s *steering, args []string, out io.Writer) error {
	var m imdstest.Maintenance
	s.StringVar(&m.Code, "code", "", "")
	s.StringVar(&m.ID, "id", "", "")
	s.StringVar(&m.State, "state", "", "")
	s.duration(&m.In, "in")
	s.duration(&m.For, "for")
	if _, err := s.parse(args); err != nil {
		return err
	}
	return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		return c.TriggerMaintenance(ctx, m)
	})
}

// withdraw takes back what was announced.
func withdraw(ctx context.Context, args []string, out io.Writer) error {
	what, rest, err := subject("withdraw", withdrawUsage, args)
	if err != nil {
		return err
	}
	s := newSteering("withdraw "+what, withdrawUsage)
	switch what {
	case "maintenance":
		id := s.String("id", "", "")
		noHistory := s.Bool("no-history", false, "")
		if _, err := s.canWait().parse(rest); err != nil {
			return err
		}
		return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.WithdrawMaintenance(ctx, *id, *noHistory)
		})
	case "spot", "rebalance", "lifecycle", "all":
		if _, err := s.canWait().parse(rest); err != nil {
			return err
		}
		return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
			return c.Withdraw(ctx, what)
		})
	default:
		return usageError{fmt.Sprintf("withdraw: %q is nothing that is announced: want spot, rebalance, maintenance, lifecycle or all", what)}
	}
}

// subject takes the first word of args, which says what a command is about and so which flags it has.
func subject(name, usage string, args []string) (what string, rest []string, err error) {
	switch {
	case len(args) == 0:
		return "", nil, usageError{fmt.Sprintf("%s: what? See \"nth-imds help %s\"", name, name)}
	case isHelp(args[0]):
		return "", nil, helpWanted{usage}
	}
	return args[0], args[1:], nil
}
