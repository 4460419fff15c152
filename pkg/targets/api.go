package targets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies. The second is needed where target groups are to be found.
const (
	describeHealth = "elasticloadbalancing:DescribeTargetHealth"
	describeGroups = "elasticloadbalancing:DescribeTargetGroups"
)

// answerLimit is how long one request may take, including the one for credentials.
const answerLimit = 4 * time.Second

// atOnce is how many groups are asked about at once, and lookLimit how long all requests of one look may take.
const (
	atOnce    = 8
	lookLimit = 2 * answerLimit
)

// mostGroups is how many target groups of a VPC are looked at. Each is a request, and all nodes share the limit for those.
const mostGroups = 100

var (
	errNoGroup   = errors.New("there is no such target group")
	errThrottled = errors.New("too much is asked")
	errSilent    = fmt.Errorf("no answer within %s", answerLimit)
)

// manyError is a VPC with more target groups than can be looked at.
type manyError struct{ groups int }

func (e manyError) Error() string {
	return fmt.Sprintf("there are %d target groups in the VPC, too many to look at: name those of this node in load_balancers.target_groups", e.groups)
}

// lasting reports whether a request failed for a reason that does not pass soon.
func lasting(err error) bool {
	_, refused := errors.AsType[role.RefusedError](err)
	_, many := errors.AsType[manyError](err)
	return refused || many || errors.Is(err, role.ErrNoRole)
}

// name is the short name of a target group: that of arn:aws:elasticloadbalancing:REGION:ACCOUNT:targetgroup/web/0123456789abcdef
// is tg/web.
func name(arn string) string {
	if parts := strings.Split(arn, "/"); len(parts) == 3 {
		return "tg/" + parts[1]
	}
	return arn
}

// service is Elastic Load Balancing, asked about one instance.
type service struct {
	sdk           *elasticloadbalancingv2.Client
	instance, vpc string
}

// newService asks the metadata service for the instance's ID and region, and for its VPC if that is needed. It sends nothing to
// Elastic Load Balancing.
func newService(ctx context.Context, opts Options) (*service, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	instance, err := opts.Metadata.Line(ctx, "instance-id")
	if err != nil {
		return nil, fmt.Errorf("asking the metadata service for the instance's ID: %w", err)
	}
	cfg, err := opts.AWS(ctx)
	if err != nil {
		return nil, err
	}
	vpc := ""
	if slices.Contains(opts.Groups, All) {
		mac, err := opts.Metadata.Line(ctx, "mac")
		if err == nil {
			vpc, err = opts.Metadata.Line(ctx, "network/interfaces/macs/"+mac+"/vpc-id")
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // Without it, groups of all VPCs are looked at.
			return nil, fmt.Errorf("asking the metadata service for the VPC: %w", err)
		}
	}
	// The SDK does not retry: the next look does.
	once := func(o *elasticloadbalancingv2.Options) { o.Retryer = aws.NopRetryer{} }
	return &service{sdk: elasticloadbalancingv2.NewFromConfig(cfg, once), instance: instance, vpc: vpc}, nil
}

// groups returns the groups that are named, or finds those of the VPC.
func (s *service) groups(ctx context.Context, named []string) ([]*group, error) {
	found := []*group{}
	if !slices.Contains(named, All) {
		for _, arn := range named {
			found = append(found, &group{arn: arn, name: name(arn), seen: time.Now()})
		}
		return found, nil
	}
	for pages := elasticloadbalancingv2.NewDescribeTargetGroupsPaginator(s.sdk, &elasticloadbalancingv2.DescribeTargetGroupsInput{}); pages.HasMorePages(); {
		asking, cancel := context.WithTimeout(ctx, answerLimit)
		page, err := pages.NextPage(asking)
		cancel()
		if err != nil {
			return nil, explain(describeGroups, err)
		}
		for _, g := range page.TargetGroups {
			machines, pods := g.TargetType == types.TargetTypeEnumInstance, g.TargetType == types.TargetTypeEnumIp
			if (s.vpc == "" || aws.ToString(g.VpcId) == s.vpc) && (machines || pods) {
				arn := aws.ToString(g.TargetGroupArn)
				found = append(found, &group{arn: arn, name: name(arn), pods: pods, seen: time.Now()})
			}
		}
	}
	if len(found) > mostGroups {
		return nil, manyError{len(found)}
	}
	return found, nil
}

// healths asks which targets of groups are the machine or have one of the addresses, and are not out, a few groups at once. It calls
// take for each group, one at a time. If the service throttles, if there is no role, or if the time for a look is over, the remaining
// groups get the same error without a request.
func (s *service) healths(ctx context.Context, groups []*group, addresses map[netip.Addr]bool, take func(i int, found []left, err error)) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookLimit, fmt.Errorf("calling %s: %w", describeHealth, errSilent))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex
	var asking sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i, g := range groups {
		free <- struct{}{}
		asking.Go(func() {
			defer func() { <-free }()
			found, err := s.health(ctx, *g, addresses)
			if errors.Is(err, errThrottled) || errors.Is(err, role.ErrNoRole) {
				stop(err)
			}
			if ctx.Err() != nil && err != nil {
				err = context.Cause(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			take(i, found, err)
		})
	}
	asking.Wait()
}

// health asks which targets of a group are the machine or have one of the addresses, and are not out. It asks for all targets, as
// Elastic Load Balancing takes a target without a port for one with the group's own port.
func (s *service) health(ctx context.Context, g group, addresses map[netip.Addr]bool) ([]left, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeTargetHealth(ctx, &elasticloadbalancingv2.DescribeTargetHealthInput{TargetGroupArn: &g.arn})
	if err != nil {
		return nil, explain(describeHealth, err)
	}
	var found []left
	for _, d := range out.TargetHealthDescriptions {
		if d.Target == nil || d.TargetHealth == nil || d.TargetHealth.State == types.TargetHealthStateEnumUnused {
			continue // An unused target gets no requests.
		}
		id := aws.ToString(d.Target.Id)
		address, err := netip.ParseAddr(id)
		if machine := id == s.instance; machine || err == nil && addresses[address.Unmap()] {
			found = add(found, left{group: g.name, state: plain(d.TargetHealth.State), machine: machine})
		}
	}
	return found, nil
}

// plain returns a target's state, in which a draining target is draining whether or not it is healthy.
func plain(s types.TargetHealthStateEnum) state {
	if s == types.TargetHealthStateEnumUnhealthyDraining {
		return draining
	}
	return state(s)
}

// add counts one more target that is left.
func add(all []left, one left) []left {
	for i := range all {
		if counted := all[i]; counted.state == one.state && counted.machine == one.machine {
			all[i].count++
			return all
		}
	}
	one.count = 1
	return append(all, one)
}

// explain says in plain words why a request failed.
func explain(action string, err error) error {
	api, answered := errors.AsType[smithy.APIError](err)
	switch {
	case role.Throttled(err):
		return fmt.Errorf("calling %s: %w", action, errThrottled)
	case answered && api.ErrorCode() == "TargetGroupNotFound":
		return errNoGroup
	case !answered && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("calling %s: %w", action, errSilent)
	}
	return role.Explain(action, answerLimit, err)
}
