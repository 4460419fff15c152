// Package targets tells when load balancers are done with this machine: when neither the machine nor a pod that was on it is
// a target of a target group of Elastic Load Balancing (version 2).
//
// It only looks, with one permission of the instance's own role, and deregisters nothing. That is done by whoever has registered the
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
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/role"
)

// All stands for all target groups in the instance's VPC.
const All = "all"

// Options say which target groups to look at, and how to reach Elastic Load Balancing.
type Options struct {
	// Groups are the ARNs of target groups, or All alone.
	Groups []string
	// Region is the region's name, and Endpoint the base URL of the service in it. Empty is as in role.Options.
	Region, Endpoint string
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata role.Metadata
}

// Targets looks for this machine and its pods in target groups. Make one with New.
type Targets struct {
	opts Options
	dial dialer

	mu      sync.Mutex
	service *service // nil before the metadata service has answered
}

// dialer makes a connection; nil means the network's own.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Targets that has asked nothing yet.
func New(opts Options) *Targets { return &Targets{opts: opts} }

const (
	// shortestPause and longestPause bound the time between two looks, which is random: the nodes of a fleet that are
	// interrupted at once share one rate limit. Each look that is throttled doubles it, up to slowest.
	shortestPause, longestPause = 2 * time.Second, 5 * time.Second
	slowest                     = 20 * time.Second
	// silence is how long a group may give no answer if there has never been one, and lapse if there has.
	silence, lapse = 5 * time.Second, 30 * time.Second
	// patience is how long somebody may take to begin to deregister targets.
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

// Out waits until neither the machine nor a target with one of the addresses is in a target group any more. It returns nil
// then, and otherwise why it does not wait any longer: ctx has ended, some group could not be looked at, or nobody deregisters the
// targets. An error of one group does not end the wait for the others. labeled says that somebody is expected to deregister the machine.
// tell is called with what is waited for, in words, whenever that changes.
func (t *Targets) Out(ctx context.Context, labeled bool, addresses []string, tell func(left string)) error {
	w := &wait{targets: t, labeled: labeled, addresses: parse(addresses), began: time.Now()}
	for told := ""; ; {
		waited, err := w.step(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if waited == "" {
			return err
		}
		if waited != told && waited != unknown {
			told = waited
			tell(waited)
		}
		if !role.Sleep(ctx, w.pause()) {
			return ctx.Err()
		}
	}
}

// unknown is waited for while no group has been looked at.
const unknown = "?"

// wait is one call of Out.
type wait struct {
	targets   *Targets
	labeled   bool
	addresses map[netip.Addr]bool
	began     time.Time

	service *service
	groups  []*watched // nil before they are known
	found   time.Time  // since when they are known
	// throttled counts the looks in a row that were throttled.
	throttled int
}

// watched is what is known of a group.
type watched struct {
	group
	// done is set if it has nothing of ours any more, or is not looked at any more because of failed.
	done   bool
	failed error
	// left are our targets as of the last good look, at seen; zero if there was none.
	left []left
	seen time.Time
}

// step looks once, and returns what is waited for. If that is nothing, the error says why the wait ends early; nil if all is out.
func (w *wait) step(ctx context.Context) (waited string, why error) {
	if err := w.find(ctx); err != nil {
		w.slow(errors.Is(err, errThrottled))
		if givenUp(err, time.Since(w.began), silence) {
			return "", err
		}
		return unknown, nil
	}
	w.look(ctx)
	return w.judge(time.Now())
}

// find finds the groups, once.
func (w *wait) find(ctx context.Context) error {
	if w.groups != nil {
		return nil
	}
	beginning, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var err error
	if w.service, err = w.targets.begin(beginning); err != nil {
		return err
	}
	found, err := w.service.groups(ctx, w.targets.opts.Groups)
	if err != nil {
		return err
	}
	w.groups, w.found = make([]*watched, 0, len(found)), time.Now()
	for _, g := range found {
		w.groups = append(w.groups, &watched{group: g, done: g.pods && len(w.addresses) == 0})
	}
	return nil
}

// open returns the groups that are not done, the one with the oldest look first.
func (w *wait) open() []*watched {
	open := slices.DeleteFunc(slices.Clone(w.groups), func(g *watched) bool { return g.done })
	slices.SortStableFunc(open, func(a, b *watched) int { return a.seen.Compare(b.seen) })
	return open
}

// look looks at the groups that are not done.
func (w *wait) look(ctx context.Context) {
	open, throttled := w.open(), false
	groups := make([]group, len(open))
	for i, g := range open {
		groups[i] = g.group
	}
	w.service.healths(ctx, groups, w.addresses, func(i int, found []left, err error) {
		throttled = throttled || errors.Is(err, errThrottled)
		w.take(open[i], found, err)
	})
	w.slow(throttled)
}

// take notes the targets that a look at a group has found, or why it failed. After a failure, the last good look counts for a while.
func (w *wait) take(g *watched, found []left, err error) {
	now, since, limit := time.Now(), w.found, silence
	if !g.seen.IsZero() {
		since, limit = g.seen, lapse
	}
	switch {
	case errors.Is(err, errNoGroup):
		g.left, g.done = nil, true
	case err == nil:
		g.left, g.seen, g.done = found, now, len(found) == 0
	case givenUp(err, now.Sub(since), limit):
		g.left, g.done, g.failed = nil, true, err
	}
}

// givenUp reports whether a group is given up whose requests have failed for so long.
func givenUp(err error, after, limit time.Duration) bool {
	if errors.Is(err, errThrottled) {
		limit = patience
	}
	return lasting(err) || after >= limit
}

// slow counts the looks in a row that were throttled.
func (w *wait) slow(throttled bool) {
	if w.throttled++; !throttled {
		w.throttled = 0
	}
}

// judge says in words which targets are waited for. If there are none, the error says why the wait ends early; nil if all is out.
func (w *wait) judge(now time.Time) (string, error) {
	var waited, stuck []left
	for _, g := range w.groups {
		for _, l := range g.left {
			late := now.Sub(w.began) >= patience
			if l.state != draining && (late || l.machine && !w.labeled) {
				stuck = append(stuck, l)
			} else {
				waited = append(waited, l)
			}
		}
	}
	switch {
	case len(waited) > 0:
		return words(waited), nil
	case w.unseen():
		return unknown, nil
	case len(stuck) > 0 && stuck[0].machine && !w.labeled:
		return "", fmt.Errorf("%s, and the node is not labeled for anybody to take it out", words(stuck))
	case len(stuck) > 0:
		return "", fmt.Errorf("%s, and nobody has begun to take it out within %s", words(stuck), patience)
	}
	return "", w.failed()
}

// unseen reports whether there is a group of which nothing is known yet.
func (w *wait) unseen() bool {
	return slices.ContainsFunc(w.groups, func(g *watched) bool { return !g.done && g.seen.IsZero() })
}

// failed is why some groups were given up, with their names unless it is the same for all groups; nil if none was.
func (w *wait) failed() error {
	var reasons []error
	names := map[string][]string{} // by the reason
	for _, g := range w.groups {
		if g.failed == nil {
			continue
		}
		text := g.failed.Error()
		if names[text] == nil {
			reasons = append(reasons, g.failed)
		}
		names[text] = append(names[text], g.name)
	}
	switch {
	case len(reasons) == 0:
		return nil
	case len(names[reasons[0].Error()]) == len(w.groups):
		return reasons[0]
	}
	said := make([]string, len(reasons))
	for i, reason := range reasons {
		said[i] = strings.Join(names[reason.Error()], ", ") + ": " + reason.Error()
	}
	return errors.New(strings.Join(said, "; "))
}

// pause is how long to wait before the next look.
func (w *wait) pause() time.Duration {
	pause := shortestPause + rand.N(longestPause-shortestPause)
	if w.throttled > 0 {
		pause = min(pause<<min(w.throttled, 4), slowest)
	}
	if w.throttled == 0 && (w.groups == nil || w.unseen()) { // They are soon given up.
		pause = min(pause, time.Second)
	}
	return pause
}

// words says what is left: "2 targets are still draining in tg/web".
func words(all []left) string {
	said := make([]string, len(all))
	for i, l := range all {
		targets := "1 target is"
		if l.count != 1 {
			targets = fmt.Sprintf("%d targets are", l.count)
		}
		said[i] = fmt.Sprintf("%s still %s in %s", targets, l.state, l.group)
	}
	return strings.Join(said, ", ")
}

// parse parses addresses, and leaves out what is none.
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
		service, err := newService(ctx, t.opts, t.dial)
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
	groups = slices.DeleteFunc(groups, func(g group) bool { return g.pods }) // The pods are not known here.
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
