package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nth-project/nth/cmd/internal/draining"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
)

// checkedSource returns the metadata service as it is checked.
func checkedSource(cfg config.Config) (*imds.Source, error) {
	bootID, err := record.BootID("/")
	if err != nil {
		return nil, err
	}
	return newSource(imds.Options{Endpoint: cfg.IMDS.Endpoint, LifeCycles: cfg.IMDS.LifeCycles, BootID: bootID})
}

// metadata checks the metadata service.
func (c *check) metadata(ctx context.Context, cfg config.Config, source *imds.Source) {
	found := source.Check(ctx)
	if found.Unreachable != nil {
		hint := ""
		if found.Hops() {
			hint = "; it accepts the connection, but its answer is lost: in a container, the instance's hop limit must be at least 2"
		}
		c.Fail("metadata", "%s%s", found.Unreachable, hint)
		return
	}
	c.OK("metadata", "session token received from %s", found.Endpoint)
	if found.Slow {
		c.Warn("metadata", "answers take up to %s: notices are seen that much later", found.Slowest.Round(time.Millisecond))
	}
	for _, document := range found.Lacking {
		c.Warn("metadata", "%s is not there, and never will be: the instance's metadata is of %s, from before EC2 had it, and "+
			"stays so on instances of the Nitro system; launch the instance anew", document, found.Build)
	}
	if found.LifeCycle == "" {
		c.Warn("metadata", "it does not say the instance's life cycle; polling everything")
	} else {
		c.OK("metadata", "%s", source.Scope(found.LifeCycle))
	}
	for _, poll := range found.Polls {
		if poll.Result == imds.Failed {
			c.Fail("metadata", "%s", poll)
		} else {
			c.OK("metadata", "%s", poll)
		}
	}
	if found.Dated {
		c.clock("the metadata service", found.Ahead)
	}
	c.hook(ctx, cfg, source)
	c.reservation(ctx, cfg, source, found.LifeCycle)
	c.targets(ctx, cfg, source)
}

// skew is how far clocks may be apart without a word. A deadline is a time of EC2's, and their dates are in seconds.
const skew = 3 * time.Second

func (c *check) clock(whose string, ahead time.Duration) {
	switch {
	case ahead.Abs() <= skew:
		c.OK("clock", "in sync with that of %s", whose)
	case ahead > 0:
		c.Warn("clock", "it is %s ahead of that of %s: deadlines will appear closer than they are", ahead, whose)
	default:
		c.Warn("clock", "it is %s behind that of %s: deadlines will appear further away than they are", -ahead, whose)
	}
}

// cluster checks the kubelet's identity and what it may do, and returns it if there is one.
func (c *check) cluster(ctx context.Context, cfg config.Config, metadata *imds.Source) kubelet.Identity {
	c.proxy(ctx, cfg)
	id, err := kubelet.New(lookAround().identityOptions(cfg, metadata.Document)).Identity(ctx)
	if errors.Is(err, kubelet.ErrNotYet) {
		c.Fail("identity", "%s; nth would wait for it", err)
		return kubelet.Identity{}
	}
	if err != nil {
		c.Fail("identity", "%s", err)
		return kubelet.Identity{}
	}
	c.OK("identity", "node %s, by %s in %s, for %s", id.Node, id.Credential, id.Source, id.Server)
	c.way(id)
	for _, right := range id.Rights() {
		allowed, err := id.May(ctx, right)
		if err != nil {
			c.Fail("right", "%s", err)
			continue
		}
		c.Right(right.String(), right.For, right.Optional, allowed)
	}
	node := drain.New(id.Client, id.Node, draining.Options(cfg.Drain))
	c.rehearse(ctx, node)
	c.forecast(ctx, node)
	if ahead, err := id.Ahead(ctx); err != nil {
		c.Warn("clock", "%s", err)
	} else {
		c.clock("the API server", ahead)
	}
	return id
}

// rehearse tries one eviction without effect.
func (c *check) rehearse(ctx context.Context, node *drain.Node) {
	rehearsed, err := node.Rehearse(ctx)
	switch {
	case err != nil:
		c.Fail("eviction", "%s", err)
	case rehearsed.Pod == "":
		c.OK("eviction", "no pod on the node to try it with")
	case rehearsed.HeldBy != "":
		c.OK("eviction", "tried with %s, which the disruption budget %s blocks at present", rehearsed.Pod, rehearsed.HeldBy)
	default:
		c.OK("eviction", "tried with %s", rehearsed.Pod)
	}
}

// forecast tells how long a drain would take, and warns of pods that a spot notice leaves less than their own grace.
func (c *check) forecast(ctx context.Context, node *drain.Node) {
	f, err := node.Forecast(ctx, draining.SpotNotice)
	if err != nil {
		c.Warn("forecast", "%s", err)
		return
	}
	needs, cut := forecastWords(f, draining.SpotNotice)
	c.OK("forecast", "%s", needs)
	for _, pod := range cut {
		c.Warn("forecast", "%s", pod)
	}
}

// forecastWords say how long a drain would take, and what pods would be cut short.
func forecastWords(f drain.Forecast, notice time.Duration) (needs string, cut []string) {
	if f.Pods == 0 {
		return "no pods to evict", nil
	}
	for _, c := range f.Cut {
		cut = append(cut, fmt.Sprintf("%s has a grace period of %.0f s, and would get %.0f s of it", c.Pod, c.Grace.Seconds(), c.Gets.Seconds()))
	}
	return fmt.Sprintf("a drain needs about %.0f s of the %.0f s of a spot notice, if each of the %d pods takes all of its grace and no disruption budget holds one",
		f.Needs.Seconds(), notice.Seconds(), f.Pods), cut
}

// shutdown checks how long a shutdown can be held, and what the kubelet makes of that.
func (c *check) shutdown(ctx context.Context, cfg config.Config) {
	if policy.Action(cfg.Events.Shutdown.Action) == policy.Ignore {
		c.OK("shutdown", "ignored by configuration: events.%s.action", event.Shutdown)
		if holders, _, err := lookAround().system(cfg).host.KeyHolders(ctx); err == nil {
			c.unread(cfg, holders)
		}
		return
	}
	where := lookAround().system(cfg)
	if where.deaf != nil {
		c.OK("shutdown", "not available: %s", where.deaf)
		return
	}
	delay, err := where.host.Delay(ctx)
	switch {
	case err != nil:
		c.Warn("shutdown", "no advance notice: %s", err)
	case delay < dropInDelay:
		c.Warn("shutdown", "logind allows a delay of %s", tooShort(delay))
	default:
		c.OK("shutdown", "logind allows a delay of up to %s", delay)
	}
	kubelets, kubeletErr := kubelet.ReadGracefulShutdown(cfg.HostRoot)
	switch {
	case kubeletErr != nil:
		c.Warn("shutdown", "%s", kubeletErr)
	case kubelets.Period == 0:
		c.OK("shutdown", "the kubelet does not delay it")
	case err == nil && delay < kubelets.Period:
		c.Warn("shutdown", "the kubelet wants to hold it for %s, and logind grants %s: raise InhibitDelayMaxSec= in logind.conf", kubelets.Period, delay)
	default:
		c.OK("shutdown", "the kubelet holds it for %s beside nth; %s", kubelets.Period, besideNth(kubelets))
	}
	if err == nil {
		c.powerKey(ctx, cfg, where, kubelets.Period > 0)
	}
	if files, err := where.host.ServiceKeeps(ctx, "nth.service"); err == nil && files < keptFiles && wantsKey(cfg) {
		c.Warn("shutdown", "the power button is handled by logind from nth's next start on: %s", keepsTooLittle(files))
	}
}

// unread tells, and says, that nth answers the power button although the settings, as they are now, leave it to logind.
func (c *check) unread(cfg config.Config, holders []logind.Inhibitor) bool {
	ours := slices.IndexFunc(holders, func(i logind.Inhibitor) bool { return i.Who == "nth" })
	if ours < 0 || wantsKey(cfg) {
		return false
	}
	c.Warn("shutdown", "the power button is handled by nth, process %d, which has not read the settings since they leave it to logind: "+
		"systemctl reload nth", holders[ours].PID)
	return true
}

// powerKey checks who answers the power button, by what logind knows of it: the settings may have changed since nth has
// read them.
func (c *check) powerKey(ctx context.Context, cfg config.Config, where system, both bool) {
	holders, action, err := where.host.KeyHolders(ctx)
	if err != nil {
		c.Warn("shutdown", "%s", err)
		return
	}
	ours := slices.IndexFunc(holders, func(i logind.Inhibitor) bool { return i.Who == "nth" })
	others := slices.IndexFunc(holders, func(i logind.Inhibitor) bool { return i.Who != "nth" })
	say := c.OK
	if both {
		say = c.Warn
	}
	switch {
	case c.unread(cfg, holders):
	case ours >= 0 && others >= 0:
		c.Warn("shutdown", "the power button is answered by nth and by %s: each does so without the other", holders[others].Who)
	case ours >= 0:
		c.OK("shutdown", "the power button is handled by nth, process %d: the node is drained for up to %s before anybody else hears of a shutdown", holders[ours].PID, logind.PowerOffGrant)
	case others >= 0:
		c.Warn("shutdown", "the power button, which is all that EC2 presses, is answered by %s, process %d", holders[others].Who, holders[others].PID)
	case action != "poweroff":
		c.Warn("shutdown", "the power button, which is all that EC2 presses, does not power the machine off: logind's HandlePowerKey is %q", action)
	case cfg.Events.Shutdown.PowerKey != "nth":
		say("shutdown", "the power button is handled by logind, as events.%s.power_key says: it tells nth and the kubelet at once", event.Shutdown)
	default:
		say("shutdown", "the power button is handled by logind: nth does not run, or is not to drain, or finds no device with a power key in /dev/input")
	}
}
