package agent

import (
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// ended tells what came of a step.
func (a *Agent) ended(l landed, e record.Entry) {
	of := func(id string) *logrus.Entry {
		return a.sayOf(id, e.Event).WithField(systemd.FieldPhase, string(e.Phase))
	}
	switch {
	case l.calledBack && l.err != nil:
		// Told when it was called back.
	case l.step.Action == policy.Uncordon:
		a.endedUncordon(of, l)
	case l.step.Action == policy.Cordon:
		a.endedCordon(of, l)
	case l.err == nil:
		of(systemd.Drained).Warnf("%s", a.drained(l))
	case l.timedOut:
		of(systemd.DrainIncomplete).Errorf("the drain ran out of time: %s", incomplete(l.result))
	default:
		of(systemd.DrainIncomplete).WithError(l.err).Error("the drain failed; trying again")
	}
}

func (a *Agent) endedCordon(of func(string) *logrus.Entry, l landed) {
	switch {
	case l.err != nil:
		of(systemd.DrainIncomplete).WithError(l.err).Error("the node could not be cordoned; trying again")
	case l.cordon == drain.CordonForeign:
		of(systemd.CordonForeign).Info("the node was cordoned already by somebody else; that cordon stays theirs")
	case l.cordon == drain.CordonLifted:
		of(systemd.CordonForeign).Info("somebody has lifted the cordon for this event; the node stays as it is")
	case l.cordon == drain.CordonLeft:
		of(systemd.CordonForeign).Infof("the node's annotation %s asks for it to be left alone", drain.ActionAnnotation)
	default:
		of(systemd.Cordoned).Warnf("%s: %s", a.did("cordoned the node"), l.step.Reason)
	}
}

func (a *Agent) endedUncordon(of func(string) *logrus.Entry, l landed) {
	switch {
	case l.err != nil:
		of(systemd.DrainIncomplete).WithError(l.err).Error("the node could not be uncordoned; trying again")
	case l.uncordon == drain.UncordonLifted:
		of(systemd.Uncordoned).Infof("%s: %s", a.did("uncordoned the node"), l.step.Reason)
	case l.uncordon.LeftTo() != "":
		of(systemd.CordonLeft).Infof("%s: the cordon is left to %s, who still needs it", l.step.Reason, l.uncordon.LeftTo())
	case l.uncordon == drain.UncordonNodeGone:
		of(systemd.Uncordoned).Info("there is no Node any more; nothing to uncordon")
	default:
		of(systemd.Uncordoned).Info("no cordon of ours is left on the node")
	}
}

func (a *Agent) drained(l landed) string {
	r := l.result
	if r.NodeGone {
		return "there is no Node any more; nothing to drain"
	}
	if r.Limited {
		return fmt.Sprintf("no pods evicted, as the node's annotation %s asks", drain.ActionAnnotation)
	}
	if a.cfg.DryRun {
		return fmt.Sprintf("dry run: the node would have been cordoned and drained of %d pods, %d left alone", r.Evicted, r.Skipped)
	}
	text := fmt.Sprintf("drained: %d pods evicted, %d deleted, %d left alone as they should be", r.Evicted, r.Deleted, r.Skipped)
	if !l.step.Deadline.IsZero() {
		text += fmt.Sprintf("; %.0f s before the deadline", l.step.Deadline.Sub(a.now()).Seconds())
	}
	return text
}

func incomplete(r drain.Result) string {
	if len(r.Left) == 0 && r.Cordon == drain.CordonNone {
		return "the node could not even be cordoned, and which pods are left is not known"
	}
	var left []string
	for _, pod := range r.Left {
		if by := r.HeldBy[pod]; by != "" {
			pod += " (held by " + by + ")"
		}
		left = append(left, pod)
	}
	return fmt.Sprintf("%d pods evicted, %d deleted, left: %s", r.Evicted, r.Deleted, strings.Join(left, ", "))
}
