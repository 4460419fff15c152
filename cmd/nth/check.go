package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/pkg/text"
)

// checkCommand returns "nth check".
func (h hostInfo) checkCommand() *cobra.Command {
	var offline bool
	cmd := checks.Command(h.settings(), "verify that this node can be drained",
		`Checks everything that nth needs to drain this node, one line each: "ok", "warn" for what deserves a look,
and "fail" for what would keep nth from working; a summary comes last. Nothing is changed, on the node or on this machine.
The exit status is 0 without a "fail", 1 with one, and 78 if the configuration is invalid. It needs root's rights.`,
		func(ctx context.Context, list *checks.List, cfg config.Config) {
			(&check{list, h, cfg}).run(ctx, offline)
		})
	cmd.Flags().BoolVar(&offline, "offline", false, "check what is there while an image is baked: no cluster, no metadata service, no logind")
	return cmd
}

// run makes all checks, and adds their findings to the list. offline leaves out those that need a network, a cluster or logind.
func (c *check) run(ctx context.Context, offline bool) {
	if endpoint := c.cfg.IMDS.Endpoint; endpoint != "" && !slices.Contains(metadataServices, endpoint) {
		c.Warn("settings", "imds.endpoint = %q: nth sees only what is announced there, and nothing that EC2 announces", endpoint)
	}
	switch err := record.Writable(c.cfg.StateDirectory); {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		c.Fail("user", "run as root: sudo nth check") // Anything else would only say the same.
		return
	case err != nil:
		c.Fail("memory", "%s", err)
	default:
		c.OK("memory", "%s can be written to", c.cfg.StateDirectory)
	}
	if c.host.contained {
		c.OK("container", "a superpowered host container of Bottlerocket, with the host's file system at %s", c.cfg.HostRoot)
	} else {
		c.installed(offline)
	}
	node := "" // for the test message to the webhook; unknown while an image is built
	if !offline {
		c.metadata(ctx)
		id := c.cluster(ctx)
		c.daemon(ctx, id)
		c.shutdown(ctx)
		node = id.Node
	}
	c.Webhook(ctx, c.cfg.Webhook, node)
}

// check is a run of "nth check" on a host. Its methods add findings to the list.
type check struct {
	*checks.List
	host hostInfo
	cfg  config.Config
}

// metadataServices are the addresses of EC2's metadata service.
var metadataServices = []string{"http://169.254.169.254", "http://[fd00:ec2::254]"}

// installed checks the unit nth.service and the drop-in for logind on the disk. image says that an image is being built: a service that is not
// installed or enabled is a failure there. Elsewhere it is a warning, as nth may be started in another way.
func (c *check) installed(image bool) {
	missing := c.Warn
	if image {
		missing = c.Fail
	}
	found := systemd.FindInstalled("/")
	switch {
	case found.Unit == "":
		missing("service", "nth.service is not installed: install the package nth")
	case found.Enabled == "":
		missing("service", "%s is not enabled: \"systemctl enable nth\" starts it at boot", found.Unit)
	default:
		c.OK("service", "%s is enabled", found.Unit)
	}
	if found.DropIn == "" {
		c.Warn("shutdown", "80-nth.conf is not installed for logind, and a shutdown may leave almost no time to drain: install the package nth")
	} else {
		c.OK("shutdown", "%s gives drains enough time", found.DropIn)
	}
}

// metadata checks the metadata service. With the instance's role, which the service gives, it also checks lifecycle hooks and target groups.
func (c *check) metadata(ctx context.Context) {
	bootID, err := record.BootID("/")
	if err != nil {
		c.Fail("metadata", "%s", err)
		return
	}
	source, err := newSource(imds.Options{Endpoint: c.cfg.IMDS.Endpoint, BootID: bootID})
	if err != nil {
		c.Fail("metadata", "%s", err)
		return
	}
	found := source.Check(ctx)
	if found.Unreachable != nil {
		c.Fail("metadata", "%s", found.Unreachable)
		return
	}
	c.OK("metadata", "session token received from %s", found.Endpoint)
	for _, poll := range found.Polls {
		report := c.OK
		if poll.Result == imds.Failed {
			report = c.Fail
		}
		report("metadata", "%s", poll)
	}
	c.hook(ctx, source)
	c.targets(ctx, source)
}

// cluster checks the kubelet's identity and its rights in the cluster, and forecasts a drain of this node. It returns the identity, or the zero
// value without a usable one.
func (c *check) cluster(ctx context.Context) identity.Identity {
	id, err := c.host.newKubelet(c.cfg, nil).Identity(ctx)
	if err != nil {
		c.Fail("identity", "%s", err)
		return identity.Identity{}
	}
	through := ""
	if id.Proxy != "" {
		through = ", through " + id.Proxy
	}
	c.OK("identity", "node %s, by %s in %s, for %s%s", id.Node, id.Credential, id.Source, id.Server, through)
	for _, right := range id.Rights() {
		if allowed, err := id.CheckPermission(ctx, right); err != nil {
			c.Fail("right", "%s", err)
		} else {
			c.Right(right.String(), right.For, right.Optional, allowed)
		}
	}
	node := drain.New(id.Client, id.Node, drainOptions(c.cfg))
	f, err := node.Forecast(ctx, daemon.SpotNotice)
	if err != nil {
		c.Fail("forecast", "%s", err)
		return id
	}
	c.eviction(ctx, node, f)
	const isSpotNotice = true
	c.OK("forecast", "%s", describeForecast(f, daemon.SpotNotice, isSpotNotice))
	for _, pod := range f.Cut() {
		c.Warn("forecast", "%s has a grace period of %.0f s, and would get %.0f s of it", pod.Pod, pod.Grace.Seconds(), pod.Gets.Seconds())
	}
	return id
}

// eviction tries, as a dry run, to evict one of the pods that a drain would evict.
func (c *check) eviction(ctx context.Context, node *drain.Node, f evict.Forecast) {
	if len(f.Pods) == 0 {
		c.OK("eviction", "no pod on the node to try it with")
		return
	}
	pod := f.Pods[0]
	switch budget, err := node.HeldBy(ctx, pod); {
	case err != nil:
		c.Fail("eviction", "%s", err)
	case budget != "":
		c.OK("eviction", "tried as a dry run with %s, which the disruption budget %s blocks at present", pod.Pod, budget)
	default:
		c.OK("eviction", "tried as a dry run with %s, and allowed", pod.Pod)
	}
}

// describeForecast says how long a drain would take. left is the time that it has; isSpotNotice says that this is all of a spot notice.
func describeForecast(f evict.Forecast, left time.Duration, isSpotNotice bool) string {
	if len(f.Pods) == 0 {
		return "a drain takes no time: there are no pods to evict"
	}
	available := fmt.Sprintf("%.0f s", left.Seconds())
	if isSpotNotice {
		available = "the " + available + " of a spot notice"
	}
	return fmt.Sprintf("a drain of %s takes up to %.0f s of %s, if no disruption budget blocks it", text.Pods(len(f.Pods)), f.Needs.Seconds(), available)
}

// shutdown checks for how long logind lets a shutdown be delayed, how long the kubelet delays it, and which process handles the power button.
func (c *check) shutdown(ctx context.Context) {
	if policy.Action(c.cfg.Events.Shutdown.Action) == policy.Ignore {
		c.OK("shutdown", "ignored by configuration: events.%s.action", event.Shutdown)
		return
	}
	inhibit, err := logind.Host(c.cfg.HostRoot).Settings(ctx)
	delay := inhibit.Delay
	switch {
	case err != nil:
		c.Warn("shutdown", "logind gives no advance notice of a shutdown: %s", err)
	case delay < dropInDelay:
		c.Warn("shutdown", "%s", tooShort(delay))
	default:
		c.OK("shutdown", "logind allows a delay of up to %s", delay)
	}
	graceful, gracefulErr := identity.ReadGracefulShutdown(c.cfg.HostRoot)
	switch {
	case gracefulErr != nil:
		c.Warn("shutdown", "%s", gracefulErr)
	case graceful.Period == 0:
		c.OK("shutdown", "the kubelet does not delay it")
	case err == nil && delay < graceful.Period:
		c.Warn("shutdown", "the kubelet wants to hold it for %s, and logind grants %s: raise InhibitDelayMaxSec= in logind.conf", graceful.Period, delay)
	default:
		c.OK("shutdown", "the kubelet holds it for %s as well; %s", graceful.Period, kubeletsPart(graceful))
	}
	if err == nil {
		c.powerKey(inhibit, graceful.Period > 0)
	}
}

// powerKey reports which process handles the power button: EC2 presses that button to stop a machine. kubeletDelays says that the kubelet delays
// shutdowns, too.
func (c *check) powerKey(of logind.Settings, kubeletDelays bool) {
	holders := of.KeyHolders
	nth := slices.IndexFunc(holders, func(i logind.Inhibitor) bool { return i.Who == "nth" })
	other := slices.IndexFunc(holders, func(i logind.Inhibitor) bool { return i.Who != "nth" })
	leftToLogind := c.OK                       // how it is reported that logind handles the button
	if kubeletDelays || wantsPowerKey(c.cfg) { // The kubelet ends the pods while nth drains, or nth should have the button and has not.
		leftToLogind = c.Warn
	}
	switch {
	case other >= 0:
		c.Warn("shutdown", "the power button is handled by %s, process %d", holders[other].Who, holders[other].PID)
	case nth >= 0:
		c.OK("shutdown", "the power button is handled by nth, process %d: the node is drained for up to %s before logind announces the shutdown", holders[nth].PID, logind.PowerOffGrant)
	case of.PowerKey != "poweroff":
		c.Warn("shutdown", "EC2 stops machines by the power button, which does not power this one off: logind's HandlePowerKey is %q", of.PowerKey)
	default:
		leftToLogind("shutdown", "the power button is handled by logind, which announces a shutdown to nth and the kubelet at once")
	}
}

// longestOutage is how long polling for a kind of event may fail before the check fails: shorter outages are normal.
const longestOutage = 30 * time.Second

// daemon checks by the daemon's status whether the daemon runs and can act. found is the identity that this check has found, or the zero value.
// The two may differ: nth.service hides some files from the daemon.
func (c *check) daemon(ctx context.Context, found identity.Identity) {
	status, why := checks.AwaitStart(ctx, "nth", c.cfg.RuntimeDirectory, func(s state.Status) bool { return len(daemonFaults(s, found)) == 0 })
	if why != "" {
		c.Fail("daemon", "%s: this node would not be drained: \"systemctl enable --now nth\", then \"systemctl status nth\"", why)
		return
	}
	faults := daemonFaults(status, found)
	for _, fault := range faults {
		c.Fail("daemon", "%s", fault)
	}
	if len(faults) == 0 {
		c.OK("daemon", "process %d watches for node %s", status.PID, status.Node)
	}
	for _, fault := range status.Degraded {
		c.Warn("daemon", "%s", fault)
	}
	if status.DryRun && !c.cfg.DryRun {
		c.Warn("daemon", "it runs as a dry run: it logs what it would do, and changes nothing")
	}
}

// daemonFaults says what keeps a running daemon from draining this node. found is the identity that the check has found, or the zero value.
func daemonFaults(s state.Status, found identity.Identity) []string {
	var faults []string
	why := cmp.Or(s.Identity.Trouble, "it still looks for the kubelet's")
	switch lacksCredential := s.Node == "" || s.Identity.Trouble != ""; {
	case lacksCredential && found.Node != "":
		faults = append(faults, fmt.Sprintf("it has no credential: %s. This check has found one in %s: nth.service does not see "+
			"all that a shell does, such as files below /tmp, /home and /root (PrivateTmp=, ProtectHome=)", why, found.Source))
	case lacksCredential:
		faults = append(faults, "it has no credential: "+why)
	case found.Node != "" && s.Node != found.Node:
		faults = append(faults, fmt.Sprintf("it acts for node %s, and the credential in %s is of node %s: systemctl restart nth", s.Node, found.Source, found.Node))
	}
	for _, d := range s.Documents {
		if d.Trouble != "" && s.Updated.Sub(d.Since) > longestOutage {
			faults = append(faults, fmt.Sprintf("it has been unable to look for %s since %s: %s", d.Kind, d.Since.UTC().Format("15:04:05 UTC"), d.Trouble))
		}
	}
	return faults
}
