// Package targets waits until load balancers are done with this machine: until the machine is a target in no target group of Elastic Load Balancing
// (version 2). Newcomers begin with Targets.Wait; api.go has the requests.
//
// The package only asks, with permissions of the instance's own role. A look asks once about all groups. The program that has registered the machine,
// such as the AWS Load Balancer Controller, deregisters it when the Node gets the label drain.ExcludeLabel. Target groups of the type "ip" have
// pods as targets, and are not looked at.
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
	// firstPause is the longest pause between two looks. Each look that AWS throttles doubles the pause, up to longestPause: nodes that are
	// interrupted at once share one rate limit.
	firstPause, longestPause = 4 * time.Second, 20 * time.Second
	// patience is for how long looks may fail. starting is how long a controller may take to begin to deregister targets.
	patience, starting = 30 * time.Second, time.Minute
)

// Wait implements wait.Blocker. It returns nil once the machine is in none of the target groups. An error says why Wait waits no longer: ctx has
// ended, the groups could not be looked at, or no controller deregisters the machine. Wait calls report with what it waits for, when that
// changes.
func (t *Targets) Wait(ctx context.Context, node wait.Node, report func(left string)) error {
	s, reported := service{opts: t.opts}, ""
	throttled := 0 // how many looks in a row were throttled
	began := time.Now()
	looked := began // when the last look succeeded
	for {
		err := s.look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (lasting(err) || time.Since(looked) >= patience):
			return err
		case err == nil:
			looked = time.Now()
			isLate := time.Since(began) >= starting
			left, stuck := s.judge(node.Labeled, isLate)
			if left == "" || stuck != nil {
				return stuck
			}
			if left != reported {
				reported = left
				report(left)
			}
		}
		if role.Throttled(err) {
			throttled++
		} else {
			throttled = 0
		}
		if !loop.Await(ctx, nil, role.Pause(1+throttled, firstPause, longestPause)) {
			return ctx.Err()
		}
	}
}

// judge says by the last look, which succeeded, what is still to be waited for. left names the machine's states, such as "the machine is still in
// target group tg/web (draining)"; "" if the machine is in no group. stuck says why waiting is of no use: no target drains yet, and no controller
// will begin. That is so if the Node is not labeled, or if isLate says that the time for a controller is over.
func (s *service) judge(labeled, isLate bool) (left string, stuck error) {
	var parts []string
	draining := false
	for _, g := range s.open {
		parts = append(parts, fmt.Sprintf("target group %s (%s)", name(g.arn), join(g.states)))
		draining = draining || slices.Contains(g.states, types.TargetHealthStateEnumDraining)
	}
	if len(parts) > 0 {
		left = "the machine is still in " + strings.Join(parts, ", ")
	}
	switch {
	case left == "" || draining:
		return left, nil
	case !labeled:
		return left, fmt.Errorf("%s, and no controller will deregister it, because the node lacks the label node.kubernetes.io/exclude-from-external-load-balancers", left)
	case isLate:
		return left, fmt.Errorf("%s, and no controller has begun to deregister it within %s", left, starting)
	}
	return left, nil // A controller may still begin.
}

// Found is the result of Check for one target group.
type Found struct {
	// Group is the group's name, as in "tg/web". Text says what the machine is in the group.
	Group, Text string
	// Err is why the group could not be looked at; nil if it could.
	Err error
}

// Check looks once at each target group, for "nth check". The error says why no group could be looked at.
func (t *Targets) Check(ctx context.Context) ([]Found, error) {
	s := service{opts: t.opts}
	if err := s.find(ctx); err != nil {
		return nil, err
	}
	var all []Found
	for _, g := range s.open {
		err := s.health(ctx, g)
		f := Found{Group: name(g.arn), Text: "the machine is no target in " + name(g.arn), Err: err}
		if missing(err) {
			f.Err = errors.New("there is no such target group")
		}
		if len(g.states) > 0 {
			f.Text = fmt.Sprintf("the machine is %s in %s", join(g.states), f.Group)
		}
		all = append(all, f)
	}
	return all, nil
}
