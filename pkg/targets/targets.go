// Package targets tells when load balancers are done with this machine: when it is a target of none of the target groups of
// Elastic Load Balancing (version 2) any more, and no pod is that was on it.
//
// It only looks, with one permission of the instance's own role, and takes nothing out: that does whoever has put it in, the
// AWS Load Balancer Controller for one, when the Node gets its label or the pod has gone. In a target group of the type
// "instance" the machine itself is a target, by its instance ID; in one of the type "ip" pods are, by their addresses.
//
// Nobody who asks here is held for long where nothing can be learned: what is refused is told at once, and one who does not
// answer is given up after seconds.
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

// All stands for the target groups that there are in the instance's VPC.
const All = "all"

// Options say which target groups there are, and how Elastic Load Balancing is spoken to.
type Options struct {
	// Groups are the ARNs of target groups, or All alone.
	Groups []string
	// Region is the region's name, and Endpoint the base URL of the service in it. Empty is as in role.Options.
	Region, Endpoint string
	// Metadata reads a document of the instance metadata service, by its path below /latest/meta-data/. The error is
	// fs.ErrNotExist if there is none.
	Metadata func(ctx context.Context, path string) ([]byte, error)
}

// Targets are what target groups know this machine and its pods by. Make one with New.
type Targets struct {
	opts Options
	dial dialer

	mu      sync.Mutex
	service *service // nil before the metadata service has said where this is
}

// dialer makes a connection; nil means the network's own.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// New returns the targets in some groups. It asks nothing yet.
func New(opts Options) *Targets { return &Targets{opts: opts} }

const (
	// shortestPause and longestPause bound the time between two looks, which is random: the nodes of a fleet that are
	// interrupted at once share one limit of requests. Each answer that says so doubles it, up to slowest.
	shortestPause, longestPause = 2 * time.Second, 5 * time.Second
	slowest                     = 20 * time.Second
	// silence is how long an answer about a group is waited for where there has never been one, and lapse where there has.
	silence, lapse = 5 * time.Second, 30 * time.Second
	// patience is how long it is waited for that somebody begins to take targets out.
	patience = time.Minute
)

// state is how a target stands in a group: what the API says, but for those that are in no use.
type state string

const draining state = "draining"

// left is what a target group has of us that is not out.
type left struct {
	group string
	state state
	count int
	// machine tells that it is the machine itself.
	machine bool
}

// Out waits until the machine is in no target group any more, and no target is that has one of the addresses. It returns nil
// then, and otherwise why it waits no longer: ctx has ended, it cannot be told of some group, or nobody takes them out. What cannot
// be told of one group ends the wait for no other. labeled tells that somebody is expected to take the machine out. tell is called
// with what is waited for, in words, whenever that changes.
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

// unknown stands for what is waited for while that is not known.
const unknown = "?"

// wait is one wait.
type wait struct {
	targets   *Targets
	labeled   bool
	addresses map[netip.Addr]bool
	began     time.Time

	service *service
	groups  []*watched // nil before they are known, which they are since found
	found   time.Time
	// throttled counts the looks, in a row, in which too much was asked.
	throttled int
}

// watched is what is known of a group.
type watched struct {
	group
	// done tells that it has nothing of ours any more, or is not asked about any more for the reason failed.
	done   bool
	failed error
	// left is what it had of us when it was seen last, which was at seen; zero if it never was.
	left []left
	seen time.Time
}

// step looks once, and returns what is waited for. If that is nothing, the error tells why.
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

// find finds the groups that may have something of ours, once.
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

// open are the groups that are not done, those first that have not been seen for longest.
func (w *wait) open() []*watched {
	open := slices.DeleteFunc(slices.Clone(w.groups), func(g *watched) bool { return g.done })
	slices.SortStableFunc(open, func(a, b *watched) int { return a.seen.Compare(b.seen) })
	return open
}

// look looks at what is left in the groups that are not done.
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

// take takes in what was said of a group, or why nothing was. What was seen last stands for a while.
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

// givenUp tells whether nothing is to be learned any more where a request failed, so long after something was.
func givenUp(err error, after, limit time.Duration) bool {
	if errors.Is(err, errThrottled) {
		limit = patience
	}
	return lasting(err) || after >= limit
}

// slow counts whether too much was asked in a look.
func (w *wait) slow(throttled bool) {
	if w.throttled++; !throttled {
		w.throttled = 0
	}
}

// judge says what is waited for of what is left, in words; nothing if all is out, or for the reason that it returns.
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

// unseen tells whether there is a group of which nothing is known yet.
func (w *wait) unseen() bool {
	return slices.ContainsFunc(w.groups, func(g *watched) bool { return !g.done && g.seen.IsZero() })
}

// failed is why some groups are not asked about any more, with their names if it is not so of all; nil if there are none.
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
	if w.throttled == 0 && (w.groups == nil || w.unseen()) { // It is not waited for long.
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

// parse reads addresses, which are written in several ways. What is none stands for no target.
func parse(addresses []string) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			all[address.Unmap()] = true
		}
	}
	return all
}

// begin returns the service, for which the metadata service is asked once.
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

// Found is what a check has found of one target group.
type Found struct {
	// Group is its name, as in "tg/web", and Text how the machine stands in it, in words.
	Group, Text string
	// Err is why that could not be found out.
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
	groups = slices.DeleteFunc(groups, func(g group) bool { return g.pods }) // Which pods there are is not asked here.
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
