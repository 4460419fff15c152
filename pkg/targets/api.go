package targets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"golang.org/x/sync/errgroup"

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies. The second is needed where target groups are to be found.
const (
	describeHealth = "elasticloadbalancing:DescribeTargetHealth"
	describeGroups = "elasticloadbalancing:DescribeTargetGroups"
)

const (
	// answerLimit is how long one request may take, including the one for credentials.
	answerLimit = 4 * time.Second
	// atOnce is how many groups are asked about at once.
	atOnce = 8
	// mostGroups is how many target groups of a VPC are looked at. Each is a request, and all nodes share the limit for those.
	mostGroups = 100
)

// manyError is a VPC with more target groups than can be looked at.
type manyError struct{ groups int }

// Error implements error.
func (e manyError) Error() string {
	return fmt.Sprintf("there are %d target groups in the VPC, too many to look at: name those of this node in load_balancers.target_groups", e.groups)
}

// lasting reports whether a request failed for a reason that does not pass soon.
func lasting(err error) bool {
	_, refused := errors.AsType[role.RefusedError](err)
	_, many := errors.AsType[manyError](err)
	return refused || many || errors.Is(err, role.ErrNoRole)
}

// missing reports whether a request failed because there is no such target group.
func missing(err error) bool { return role.Code(err) == "TargetGroupNotFound" }

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

// newService returns the service for this instance. It asks the metadata service for the instance's ID and region, and for its VPC if groups
// are to be found. It sends nothing to Elastic Load Balancing.
func newService(ctx context.Context, opts Options) (*service, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	instance, cfg, err := role.Own(ctx, opts.Metadata, opts.AWS)
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

// groups returns the target groups to look at: those that are named or, with All, those of the VPC. Without an error the list is never nil,
// as nil means that the groups are not known yet.
func (s *service) groups(ctx context.Context, named []string) ([]*group, error) {
	found := []*group{}
	if !slices.Contains(named, All) {
		for _, arn := range named {
			found = append(found, &group{arn: arn, seen: time.Now()})
		}
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*answerLimit)
	defer cancel()
	for pages := elasticloadbalancingv2.NewDescribeTargetGroupsPaginator(s.sdk, &elasticloadbalancingv2.DescribeTargetGroupsInput{}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, role.Explain(describeGroups, 2*answerLimit, err)
		}
		for _, g := range page.TargetGroups {
			if (s.vpc == "" || aws.ToString(g.VpcId) == s.vpc) && g.TargetType == types.TargetTypeEnumInstance {
				found = append(found, &group{arn: aws.ToString(g.TargetGroupArn), seen: time.Now()})
			}
		}
	}
	if len(found) > mostGroups { // The requests would throttle all nodes. The operator has to name groups.
		return nil, manyError{len(found)}
	}
	return found, nil
}

// look asks about groups, a few at once, and sets what is known of each. It looks for targets that are the machine and may still get
// requests. If the service throttles, or the machine has no role, the remaining groups are not asked about: the
// error concerns all.
func (s *service) look(ctx context.Context, groups []*group) error {
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(atOnce)
	for _, g := range groups {
		asking.Go(func() error {
			found, err := s.health(ctx, g.arn)
			if role.Throttled(err) || errors.Is(err, role.ErrNoRole) {
				return err
			}
			if g.err = err; err == nil {
				g.left, g.seen, g.looked = found, time.Now(), true
			}
			return nil
		})
	}
	return asking.Wait()
}

// health returns the targets of a group that are the machine and may still get requests. Those with the same state are one entry. It asks for all targets of the group: a request for single ones would have to name their ports.
func (s *service) health(ctx context.Context, arn string) ([]left, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	out, err := s.sdk.DescribeTargetHealth(ctx, &elasticloadbalancingv2.DescribeTargetHealthInput{TargetGroupArn: &arn})
	if err != nil {
		return nil, role.Explain(describeHealth, answerLimit, err)
	}
	var found []left
	for _, d := range out.TargetHealthDescriptions {
		if d.Target == nil || d.TargetHealth == nil || d.TargetHealth.State == types.TargetHealthStateEnumUnused || aws.ToString(d.Target.Id) != s.instance {
			continue // An unused target gets no requests.
		}
		one := left{group: name(arn), state: d.TargetHealth.State, count: 1}
		if one.state == types.TargetHealthStateEnumUnhealthyDraining {
			one.state = types.TargetHealthStateEnumDraining // Nothing here distinguishes the two.
		}
		if i := slices.IndexFunc(found, func(l left) bool { return l.state == one.state }); i >= 0 {
			found[i].count++
		} else {
			found = append(found, one)
		}
	}
	return found, nil
}
