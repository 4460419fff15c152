package drain

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// cordonPatience is how long evictions wait for a cordon that keeps failing, where the machine is lost anyway.
const cordonPatience = 10 * time.Second

// cordon is the first phase. Where it is refused and the machine is lost anyway, evicting is still better than pods
// dying with the machine; if the failure may pass, the cordon is tried on beside the evictions.
func (d *drainer) cordon(ctx context.Context) error {
	attempt, cancel := ctx, context.CancelFunc(func() {})
	if d.plan.Hard && !d.deadline.IsZero() {
		attempt, cancel = context.WithTimeout(ctx, min(cordonPatience, time.Until(d.deadline)/4))
	}
	defer cancel()
	found, err := d.node.cordon(attempt, d.plan.Claim)
	d.result.Limited, d.lifted = found.only, found.since
	switch {
	case apierrors.IsNotFound(err):
		d.result.NodeGone = true
	case err != nil && d.plan.Hard && ctx.Err() == nil:
		d.tell(Progress{What: Refused, Detail: err.Error()})
		if passing(err) {
			late := make(chan CordonResult, 1)
			d.late = late
			d.workers.Go(func() { late <- d.cordonLate(ctx) })
		}
	case err != nil:
		return err
	default:
		d.cordoned(found.result)
	}
	return nil
}

func (d *drainer) cordonLate(ctx context.Context) CordonResult {
	result, err := d.node.Cordon(ctx, d.plan.Claim)
	if err != nil {
		d.report(ctx, outcome{what: Refused, detail: err.Error()})
	}
	return result
}

func (d *drainer) cordoned(result CordonResult) {
	d.result.Cordon = result
	switch result {
	case CordonNone:
	case CordonLeft:
		d.tell(Progress{What: NodeLeft})
	case CordonLifted:
		d.tell(Progress{What: NodeReopened})
	case CordonForeign:
		d.tell(Progress{What: NodeCordonFound})
	case CordonSet, CordonOurs:
		d.tell(Progress{What: NodeCordoned, Detail: string(result)})
	}
}

// hold starts the time during which evictions wait, and asks load balancers to look elsewhere meanwhile.
func (d *drainer) hold(ctx context.Context) <-chan time.Time {
	wait := d.node.opts.EvictAfter
	if d.node.opts.ExcludeFromLoadBalancers {
		wait = max(wait, d.node.opts.LoadBalancerWait)
		d.workers.Go(func() { d.exclude(ctx) })
	}
	if wait > 0 {
		d.tell(Progress{What: Holding, Detail: wait.String()})
	}
	return time.After(wait)
}

func (d *drainer) exclude(ctx context.Context) {
	set, err := d.node.exclude(ctx)
	if err != nil {
		d.report(ctx, outcome{what: Refused, detail: err.Error()})
	}
	if set {
		d.report(ctx, outcome{what: NodeExcluded})
	}
}
