// Package targets tells when load balancers are done with this machine: when neither the machine nor a pod that was on it is
// a target of a target group of Elastic Load Balancing (version 2).
//
// It only looks, with one permission of the instance's own role, and deregisters nothing. That is done by the program that has registered the
// target, such as the AWS Load Balancer Controller, when the Node gets its label or the pod has gone. In a target group of the type
// "instance" the machine itself is a target, by its instance ID; in one of the type "ip" pods are, by their addresses.
//
// No caller waits for long where nothing can be learned: a refusal is returned at once, and a service that does not answer is
// given up after seconds.
package targets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/wait"
)

// All stands for all target groups in the instance's VPC.
const All = "all"

// Options say which target groups to look at, and how to reach Elastic Load Balancing.
type Options struct {
	// Groups are the ARNs of target groups, or All alone.
	Groups []string
	// AWS returns what clients are made from, as role.Metadata.Account does.
	AWS func(context.Context) (aws.Config, error)
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata role.Metadata
}

// Targets looks for this machine and its pods in target groups. Make one with New.
type Targets struct {
	opts Options

	mu      sync.Mutex
	service *service // nil before the metadata service has answered
}

// New returns a Targets that has asked nothing yet.
func New(opts Options) *Targets { return &Targets{opts: opts} }

const (
	// shortestPause and longestPause bound the time between two looks, which is random: the nodes of a fleet that are interrupted at
	// once share one rate limit. Each look that is throttled doubles it, up to slowest.
	shortestPause, longestPause = 2 * time.Second, 5 * time.Second
	slowest                     = 20 * time.Second
	// silence is how long a group may give no answer if there has never been one, and lapse if there has.
	silence, lapse = 5 * time.Second, 30 * time.Second
	// patience is how long somebody may take to begin to deregister targets, and how long a group may be throttled.
	patience = time.Minute
)

// state is the state of a target, as in the API.
type state string

const draining state = "draining"

// left are targets of ours in a group that are not out, and have the same state.
type left struct {
	group   string
	state   state
	count   int
	machine bool // it is the machine itself, and not a pod
}

// group is a target group, and what is known of it.
type group struct {
	arn, name string
	pods      bool // its targets are known to be addresses
	// done is set once it has nothing of ours any more, or is given up because of failed.
	done   bool
	failed error
	// left are our targets as of the last good look, at seen; before one, seen is when the group was found.
	left   []left
	seen   time.Time
	looked bool // there was a good look
}

// Wait implements wait.Blocker. It waits until neither the machine nor a target with one of the addresses is in a target group any more.
// It returns nil then, and otherwise why it waits no longer: ctx has ended, a group could not be looked at, or nobody deregisters the
// targets. An error of one group does not end the wait for the others. Where the Node is labeled, a controller is expected to deregister
// the machine.
func (t *Targets) Wait(ctx context.Context, node wait.Node, report func(left string)) error {
	addresses, began := parse(node.Addresses), time.Now()
	var groups []*group
	throttled, reported := 0, ""
	for {
		var err error
		if groups == nil {
			groups, err = t.find(ctx, len(addresses) > 0)
		}
		slowed := errors.Is(err, errThrottled)
		if err == nil {
			slowed = t.look(ctx, groups, addresses)
		}
		waited, unknown, why := judge(groups, node.Labeled, time.Since(began) >= patience)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && givenUp(err, time.Since(began), silence):
			return err
		case err == nil && waited == "" && !unknown:
			return why
		case waited != "" && waited != reported:
			reported = waited
			report(waited)
		}
		if throttled++; !slowed {
			throttled = 0
		}
		if !role.Sleep(ctx, pause(throttled, unknown || err != nil)) {
			return ctx.Err()
		}
	}
}

// find finds the groups. Those of pods are done where no pod is waited for.
func (t *Targets) find(ctx context.Context, pods bool) ([]*group, error) {
	service, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := service.groups(ctx, t.opts.Groups)
	for _, g := range groups {
		g.done = g.pods && !pods
	}
	return groups, err
}

// look looks once at each group that is not done, those first that have been unknown for the longest.
func (t *Targets) look(ctx context.Context, groups []*group, addresses map[netip.Addr]bool) (throttled bool) {
	open := slices.DeleteFunc(slices.Clone(groups), func(g *group) bool { return g.done })
	slices.SortStableFunc(open, func(a, b *group) int { return a.seen.Compare(b.seen) })
	t.service.healths(ctx, open, addresses, func(i int, found []left, err error) {
		throttled = throttled || errors.Is(err, errThrottled)
		open[i].take(found, err)
	})
	return throttled
}

// take notes what a look at the group has found, or why it failed. After a failure, the last good look counts for a while.
func (g *group) take(found []left, err error) {
	limit := silence
	if g.looked {
		limit = lapse
	}
	switch {
	case errors.Is(err, errNoGroup):
		g.left, g.done = nil, true
	case err == nil:
		g.left, g.seen, g.looked, g.done = found, time.Now(), true, len(found) == 0
	case givenUp(err, time.Since(g.seen), limit):
		g.left, g.done, g.failed = nil, true, err
	}
}

// givenUp reports whether nothing is to be learned any more where requests have failed for so long.
func givenUp(err error, after, limit time.Duration) bool {
	if errors.Is(err, errThrottled) {
		limit = patience
	}
	return lasting(err) || after >= limit
}

// judge says which targets are waited for, and whether some group is not known yet. If neither, the error says why the wait ends early.
// It is late when a controller should have begun to deregister the targets.
func judge(groups []*group, labeled, late bool) (waited string, unknown bool, err error) {
	var waiting, stuck []left
	for _, g := range groups {
		unknown = unknown || !g.done && !g.looked
		for _, l := range g.left {
			if l.state != draining && (late || l.machine && !labeled) {
				stuck = append(stuck, l)
			} else {
				waiting = append(waiting, l)
			}
		}
	}
	switch {
	case len(waiting) > 0 || unknown:
		return words(waiting), unknown, nil
	case len(stuck) > 0 && stuck[0].machine && !labeled:
		return "", false, fmt.Errorf("%s, and the node is not labeled for anybody to take it out", words(stuck))
	case len(stuck) > 0:
		return "", false, fmt.Errorf("%s, and no controller has begun to deregister it within %s", words(stuck), patience)
	}
	return "", false, failure(groups)
}

// failure is why groups were given up: the first one's reason.
func failure(groups []*group) error {
	failed := slices.DeleteFunc(slices.Clone(groups), func(g *group) bool { return g.failed == nil })
	switch {
	case len(failed) == 0:
		return nil
	case lasting(failed[0].failed):
		return failed[0].failed
	case len(failed) > 1:
		return fmt.Errorf("%s and %d more: %w", failed[0].name, len(failed)-1, failed[0].failed)
	}
	return fmt.Errorf("%s: %w", failed[0].name, failed[0].failed)
}

// pause is how long to wait before the next look: shortly while something is not known yet, as that is soon given up.
func pause(throttled int, unknown bool) time.Duration {
	pause := shortestPause + rand.N(longestPause-shortestPause)
	switch {
	case throttled > 0:
		return min(pause<<min(throttled, 4), slowest)
	case unknown:
		return time.Second
	}
	return pause
}

// words says what is left: "2 targets are still draining in tg/web".
func words(all []left) string {
	parts := make([]string, len(all))
	for i, l := range all {
		targets := "1 target is"
		if l.count != 1 {
			targets = fmt.Sprintf("%d targets are", l.count)
		}
		parts[i] = fmt.Sprintf("%s still %s in %s", targets, l.state, l.group)
	}
	return strings.Join(parts, ", ")
}

// parse parses addresses, and leaves out what is not one.
func parse(addresses []string) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			all[address.Unmap()] = true
		}
	}
	return all
}

// begin returns the service. It asks the metadata service once.
func (t *Targets) begin(ctx context.Context) (*service, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.service == nil {
		service, err := newService(ctx, t.opts)
		if err != nil {
			return nil, err
		}
		t.service = service
	}
	return t.service, nil
}

// Found is the result of Check for one target group.
type Found struct {
	// Group is its name, as in "tg/web", and Text the machine's state in it, in words.
	Group, Text string
	// Err is why the group could not be looked at.
	Err error
}

// Check looks once at each group. The error is why none could be looked at.
func (t *Targets) Check(ctx context.Context) ([]Found, error) {
	service, err := t.begin(ctx)
	if err != nil {
		return nil, err
	}
	groups, err := service.groups(ctx, t.opts.Groups)
	if err != nil {
		return nil, err
	}
	groups = slices.DeleteFunc(groups, func(g *group) bool { return g.pods }) // The pods are not known here.
	all := make([]Found, len(groups))
	service.healths(ctx, groups, nil, func(i int, found []left, err error) {
		name := groups[i].name
		text := "the machine is no target in " + name
		if len(found) > 0 {
			states := make([]string, len(found))
			for i, l := range found {
				states[i] = string(l.state)
			}
			text = fmt.Sprintf("the machine is %s in %s", strings.Join(slices.Compact(states), " and "), name)
		}
		all[i] = Found{Group: name, Text: text, Err: err}
	})
	return all, nil
}
