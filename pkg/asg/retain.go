package asg

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// An Auto Scaling group takes an instance whose hook for terminations is abandoned, as it takes one whose hook is completed. Only where
// its instance lifecycle policy says TerminateHookAbandon=retain is the instance kept, in the state Terminating:Retained, until people
// end it. https://docs.aws.amazon.com/autoscaling/ec2/userguide/instance-lifecycle-policy.html

// result is that with which a hook is completed for what has come of a termination, and says why that is not what people ask for. It is
// empty where the hook is not to be completed, and with an error if that could not be found out yet: what people want kept is not given
// away because Auto Scaling did not answer once. An error with a result is a permission that is missing.
func (s *service) result(ctx context.Context, group string, outcome event.Outcome, abandoning bool) (result, why string, err error) {
	switch {
	case outcome != event.Drained && outcome != event.OutOfTime: // It is not ours to say that the machine may go.
		return "", "", nil
	case outcome == event.Drained || !abandoning:
		return proceed, "", nil
	}
	keeps, err := s.retains(ctx, group)
	switch {
	case unpermitted(err):
		return proceed, "", err
	case err != nil:
		return "", "", fmt.Errorf("finding out whether the group keeps the machine: %w", err)
	case !keeps:
		return proceed, willNotKeep(group), nil
	}
	return abandon, "", nil
}

// result is that with which the hooks of the termination are completed.
func (w *watch) result(ctx context.Context, outcome event.Outcome, settings Settings) (string, error) {
	abandoning := settings.Abandon && !w.opts.DryRun
	if abandoning && outcome == event.OutOfTime && !strings.HasSuffix(w.state, "Terminating:Wait") {
		w.once("the instance is in state %s, in which no machine is kept whose hook is abandoned: the hook is completed with %s", w.state, proceed)
		abandoning = false
	}
	result, why, err := w.service.result(ctx, w.group, outcome, abandoning)
	switch {
	case result == "":
		w.asked++
		return "", err
	case err != nil:
		w.judge(err)
	case why != "":
		w.once("%s", why)
	}
	w.asked = 0
	return result, nil
}

// foresee finds out, where people want the machine kept, whether it is there still when its time is over with pods left: then none has to
// be deleted for that time. What is due next, and err, are so anyway; it returns them with what comes of its own question.
func (w *watch) foresee(ctx context.Context, next time.Time, err error) (time.Time, error) {
	_, settings := w.now()
	switch {
	case w.foreseen || !settings.Abandon || next.IsZero() || ctx.Err() != nil:
		return next, err
	case !ends(w.event.Code):
		w.foreseen = true
		w.lose(true)
		return next, err
	case w.actions == nil: // Of which group it is, or which hooks there are, is not known; without an error it is of none.
		w.lose(err == nil || unpermitted(err))
		return next, err
	}
	keeps, asked := w.service.retains(ctx, w.group)
	switch {
	case unpermitted(asked):
		w.judge(asked)
	case asked != nil:
		w.asked++
		if again := time.Now().Add(pause(w.asked)); again.Before(next) {
			next = again
		}
		if err == nil {
			err = fmt.Errorf("finding out whether the group would keep the machine: %w", asked)
		}
		return next, err
	case !keeps:
		w.once("%s", willNotKeep(w.group))
	}
	w.asked, w.foreseen = 0, true
	w.lose(asked != nil || !keeps)
	return next, err
}

// willNotKeep and willKeep say what on_incomplete = "abandon" comes to.
func willNotKeep(group string) string {
	return fmt.Sprintf(`the Auto Scaling group %s does not keep a machine whose hook is abandoned, its instance lifecycle policy has no `+
		`TerminateHookAbandon=retain: out of time, hooks are completed with %s in spite of on_incomplete = "abandon"`, group, proceed)
}

func willKeep(group string) string {
	return fmt.Sprintf("out of time with pods left, hooks are abandoned, and the Auto Scaling group %s keeps the machine (Terminating:Retained)", group)
}
