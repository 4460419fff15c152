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
)

// All stands for the target groups that there are in the instance's VPC.
const All = "all"

// Options say which target groups there are, and how Elastic Load Balancing is spoken to.
type Options struct {
	// Groups are the ARNs of target groups, or All alone.
	Groups []string
	// Region is the region's name, and Endpoint the base URL of the service in it. Empty is where the instance is, and
	// the region's own.
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
	// silence is how long a service is waited for that has never answered, and lapse one that has.
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
// then, and otherwise why it waits no longer: ctx has ended, it cannot be told, or nobody takes them out. labeled tells that
// somebody is expected to take the machine out. tell is called with what is waited for, in words, whenever that changes.
func (t *Targets) Out(ctx context.Context, labeled bool, addresses []string, tell func(left string)) error {
	w := &wait{targets: t, labeled: labeled, addresses: parse(addresses), began: time.Now(), out: map[string]bool{}}
	w.good = w.began
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
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.pause()):
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

	groups []group // nil before they are known
	// out are the groups that have nothing of ours any more, or cannot be asked about. refused is why not.
	out     map[string]bool
	refused error
	// waited is what was waited for after the last good look; empty before there was one.
	waited string
	// good is when the last good look was, or the wait began, and throttled counts the answers since then, in a row, that too much is
	// asked.
	good      time.Time
	throttled int
}

// step looks once, and returns what is waited for. If that is nothing, the error tells why.
func (w *wait) step(ctx context.Context) (waited string, why error) {
	found, err := w.look(ctx)
	now := time.Now()
	if err == nil {
		w.good, w.throttled = now, 0
		w.waited, why = w.judge(found, now)
		return w.waited, why
	}
	if w.throttled++; !errors.Is(err, errThrottled) {
		w.throttled = 0
	}
	switch {
	case lasting(err), now.Sub(w.good) >= w.limit():
		return "", err
	case w.waited == "":
		return unknown, nil
	}
	return w.waited, nil
}

// limit is how long nothing need be learned.
func (w *wait) limit() time.Duration {
	switch {
	case w.throttled > 0:
		return patience
	case w.waited != "":
		return lapse
	}
	return silence
}

// look looks at what is left in the groups that are not known to be done with us.
func (w *wait) look(ctx context.Context) ([]left, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	service, err := w.targets.begin(ctx)
	if err != nil {
		return nil, err
	}
	if w.groups == nil {
		if w.groups, err = service.groups(ctx, w.targets.opts.Groups); err != nil {
			return nil, err
		}
	}
	var all []left
	for _, g := range w.groups {
		if w.out[g.arn] || g.pods && len(w.addresses) == 0 {
			continue
		}
		found, err := service.health(ctx, g, w.addresses)
		switch {
		case errors.Is(err, errNoGroup):
		case lasting(err):
			w.refused = err
		case err != nil:
			return nil, err
		}
		w.out[g.arn] = len(found) == 0
		all = append(all, found...)
	}
	return all, nil
}

// judge says what is waited for of what is left, in words; nothing if all is out, or for the reason that it returns.
func (w *wait) judge(found []left, now time.Time) (string, error) {
	var waited, stuck []left
	for _, l := range found {
		late := now.Sub(w.began) >= patience
		if l.state != draining && (late || l.machine && !w.labeled) {
			stuck = append(stuck, l)
		} else {
			waited = append(waited, l)
		}
	}
	switch {
	case len(waited) > 0:
		return words(waited), nil
	case len(stuck) > 0 && stuck[0].machine && !w.labeled:
		return "", fmt.Errorf("%s, and the node is not labeled for anybody to take it out", words(stuck))
	case len(stuck) > 0:
		return "", fmt.Errorf("%s, and nobody has begun to take it out within %s", words(stuck), patience)
	}
	return "", w.refused
}

// pause is how long to wait before the next look.
func (w *wait) pause() time.Duration {
	pause := shortestPause + rand.N(longestPause-shortestPause)
	if w.throttled > 0 {
		pause = min(pause<<min(w.throttled, 4), slowest)
	}
	if w.waited == "" && w.throttled == 0 { // It is not waited for long.
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
	all := make([]Found, 0, len(groups))
	for _, g := range groups {
		if g.pods {
			continue // Which pods there are is not asked here.
		}
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		found, err := service.health(limited, g, nil)
		cancel()
		text := "the machine is no target in " + g.name
		if len(found) > 0 {
			states := make([]string, len(found))
			for i, l := range found {
				states[i] = string(l.state)
			}
			text = fmt.Sprintf("the machine is %s in %s", strings.Join(slices.Compact(states), " and "), g.name)
		}
		all = append(all, Found{Group: g.name, Text: text, Err: err})
	}
	return all, nil
}
