// Package targets waits until load balancers are done with this machine: until it is no target of a target group of Elastic Load Balancing
// (version 2). Newcomers begin with Targets.Wait.
//
// It only looks, with one permission of the instance's own role, and deregisters nothing. That is done by the program that has registered the
// machine, such as the AWS Load Balancer Controller, when the Node gets its label. In a target group of the type "ip" pods are targets, by
// their addresses; these are not looked at.
//
// A wait ends early if nothing can be learned: at once if IAM refuses, and after patience if the service does not answer.
package targets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	"github.com/nth-project/nth/pkg/loop"
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

// Targets looks for this machine in target groups. It remembers nothing from one wait to the next.
type Targets struct{ opts Options }

// New returns a Targets that has asked nothing yet.
func New(opts Options) *Targets { return &Targets{opts} }

const (
	// firstPause is the longest time between two looks, and each that is throttled doubles it, up to longestPause: the nodes of a
	// fleet that are interrupted at once share one rate limit.
	firstPause, longestPause = 4 * time.Second, 20 * time.Second
	// patience is how long requests may fail, and starting how long a controller may take to begin to deregister targets.
	patience, starting = 30 * time.Second, time.Minute
)

// group is a target group, and what is known of it.
type group struct {
	arn string
	// left are the targets that are waited for, as of the last good look. seen is the time of that look, or else when the group was found.
	left   []left
	seen   time.Time
	looked bool  // a look at the group has succeeded
	err    error // why the last look failed; nil if it succeeded
}

// left are those ports of this machine in a group that are waited for and have the same state.
type left struct {
	group string
	state types.TargetHealthStateEnum
	count int
}

// String returns a message such as "2 targets are still draining in tg/web".
func (l left) String() string {
	targets := "1 target is"
	if l.count != 1 {
		targets = fmt.Sprintf("%d targets are", l.count)
	}
	return fmt.Sprintf("%s still %s in %s", targets, l.state, l.group)
}

// watch is one wait.
type watch struct {
	opts    Options
	node    wait.Node
	began   time.Time
	seen    time.Time // when the last look succeeded
	service *service  // nil before the metadata service has answered
	open    []*group  // those that are waited for; nil before they are known
	failed  []*group  // those that were given up
}

// Wait implements wait.Blocker. It returns nil once the machine is in none of the target groups. An error says why it waits no longer: ctx has
// ended, a group could not be looked at, or no controller deregisters the machine. A failure to look
// at one group does not end the wait for the others. Wait calls report with what it waits for, when that changes.
func (t *Targets) Wait(ctx context.Context, node wait.Node, report func(left string)) error {
	w, reported := watch{opts: t.opts, node: node, began: time.Now(), seen: time.Now()}, ""
	for throttled := 0; ; {
		err := w.look(ctx)
		done, left, why := w.judge()
		if throttled++; !role.Throttled(err) {
			throttled = 0
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && hopeless(err, w.seen):
			return err
		case err == nil && done:
			return why
		case err == nil && left != "" && left != reported:
			reported = left
			report(left)
		}
		if !loop.Await(ctx, nil, role.Pause(1+throttled, firstPause, longestPause)) {
			return ctx.Err()
		}
	}
}

// find finds the groups that are waited for.
func (w *watch) find(ctx context.Context) (err error) {
	if w.service == nil {
		if w.service, err = newService(ctx, w.opts); err != nil {
			return err
		}
	}
	w.open, err = w.service.groups(ctx, w.opts.Groups)
	return err
}

// look looks once at each open group, and first finds them. It closes groups of which no target is waited for, and those that it gives up. The
// error concerns all groups.
func (w *watch) look(ctx context.Context) error {
	if w.open == nil {
		if err := w.find(ctx); err != nil {
			return err
		}
	}
	if err := w.service.look(ctx, w.open); err != nil {
		return err
	}
	w.seen = time.Now()
	w.open = slices.DeleteFunc(w.open, func(g *group) bool {
		switch {
		case missing(g.err): // A group that was deleted has no targets.
			return true
		case g.err == nil:
			return len(g.left) == 0
		case hopeless(g.err, g.seen):
			w.failed = append(w.failed, g)
			return true
		}
		return false
	})
	return nil
}

// hopeless reports whether to give up after err, if requests have failed since a time.
func hopeless(err error, since time.Time) bool { return lasting(err) || time.Since(since) >= patience }

// judge decides by the last look whether waiting ends; then why says why that is too early, if it is. Otherwise left says in words what is
// waited for; "" if that is not known yet. It waits for draining targets, and for others only as long as a controller may take to begin. A
// controller deregisters the machine itself only if the Node has the label.
func (w *watch) judge() (done bool, left string, why error) {
	late := time.Since(w.began) >= starting
	var waiting, stuck []string
	unknown, unlabeled := false, false
	for _, g := range w.open {
		unknown = unknown || !g.looked
		for _, l := range g.left {
			if l.state != types.TargetHealthStateEnumDraining && (late || !w.node.Labeled) {
				stuck, unlabeled = append(stuck, l.String()), unlabeled || !w.node.Labeled
			} else {
				waiting = append(waiting, l.String())
			}
		}
	}
	switch {
	case len(waiting) > 0 || unknown:
		return false, strings.Join(waiting, ", "), nil
	case unlabeled:
		return true, "", fmt.Errorf("%s, and the node is not labeled for anybody to take it out", strings.Join(stuck, ", "))
	case len(stuck) > 0:
		return true, "", fmt.Errorf("%s, and no controller has begun to deregister it within %s", strings.Join(stuck, ", "), starting)
	}
	return true, "", w.failure()
}

// failure returns why the first group was given up, and how many more were; nil if none was.
func (w *watch) failure() error {
	if len(w.failed) == 0 {
		return nil
	}
	first := w.failed[0]
	switch more := len(w.failed) - 1; {
	case lasting(first.err): // The reason, such as a missing permission, concerns all groups.
		return first.err
	case more > 0:
		return fmt.Errorf("%s and %d more: %w", name(first.arn), more, first.err)
	}
	return fmt.Errorf("%s: %w", name(first.arn), first.err)
}

// Found is the result of Check for one target group.
type Found struct {
	// Group is its name, as in "tg/web", and Text the machine's state in it, in words.
	Group, Text string
	// Err is why the group could not be looked at.
	Err error
}

// Check looks once at each target group; "nth check" calls it. The error says why no group could be looked at.
func (t *Targets) Check(ctx context.Context) ([]Found, error) {
	w := watch{opts: t.opts}
	if err := w.find(ctx); err != nil {
		return nil, err
	}
	if err := w.service.look(ctx, w.open); err != nil {
		return nil, err
	}
	all := make([]Found, len(w.open))
	for i, g := range w.open {
		all[i] = Found{Group: name(g.arn), Text: "the machine is no target in " + name(g.arn), Err: g.err}
		if missing(g.err) {
			all[i].Err = errors.New("there is no such target group")
		}
		if len(g.left) > 0 {
			states := make([]string, len(g.left))
			for n, l := range g.left {
				states[n] = string(l.state)
			}
			all[i].Text = fmt.Sprintf("the machine is %s in %s", strings.Join(states, " and "), name(g.arn))
		}
	}
	return all, nil
}
