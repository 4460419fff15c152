// Package targets waits until load balancers are done with this machine: until it is no target of a target group of Elastic Load Balancing
// (version 2). Newcomers begin with Targets.Wait; api.go has the requests.
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
	// patience is how long looks may fail, and starting how long a controller may take to begin to deregister targets.
	patience, starting = 30 * time.Second, time.Minute
)

// Wait implements wait.Blocker. It returns nil once the machine is in none of the target groups. An error says why it waits no longer: ctx has
// ended, the groups could not be looked at, or no controller deregisters the machine. Wait calls report with what it waits for, when that
// changes.
func (t *Targets) Wait(ctx context.Context, node wait.Node, report func(left string)) error {
	s, reported, throttled := service{opts: t.opts}, "", 0
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
			left, stuck := s.judge(node.Labeled, time.Since(began) >= starting)
			if left == "" || stuck != nil {
				return stuck
			}
			if left != reported {
				reported = left
				report(left)
			}
		}
		if throttled++; !role.Throttled(err) {
			throttled = 0
		}
		if !loop.Await(ctx, nil, role.Pause(1+throttled, firstPause, longestPause)) {
			return ctx.Err()
		}
	}
}

// judge returns what the machine still is in which groups, by the last look; "" if it is in none. stuck says why there is nothing to wait for.
// Draining targets are waited for. Others are waited for as long as a controller may take to begin: it deregisters the machine only if the Node
// has the label, and late says that the time is over.
func (s *service) judge(labeled, late bool) (left string, stuck error) {
	var in []string
	draining := false
	for _, g := range s.open {
		if len(g.states) > 0 {
			in = append(in, fmt.Sprintf("%s in %s", join(g.states), name(g.arn)))
		}
		draining = draining || slices.Contains(g.states, types.TargetHealthStateEnumDraining)
	}
	if len(in) > 0 {
		left = "the machine is " + strings.Join(in, ", ")
	}
	switch {
	case left == "" || draining:
		return left, nil
	case !labeled:
		return left, fmt.Errorf("%s, and the node is not labeled for anybody to take it out", left)
	case late:
		return left, fmt.Errorf("%s, and no controller has begun to deregister it within %s", left, starting)
	}
	return left, nil
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
