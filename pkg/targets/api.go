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

	"github.com/nth-project/nth/pkg/role"
)

// The permissions, by their names in IAM policies. describeGroups is needed only with All.
const (
	describeHealth = "elasticloadbalancing:DescribeTargetHealth"
	describeGroups = "elasticloadbalancing:DescribeTargetGroups"
)

const (
	// answerLimit is how long one request may take, including the one for credentials.
	answerLimit = 4 * time.Second
	// findLimit is how long service.find may take.
	findLimit = 2 * answerLimit
	// mostGroups is how many target groups a VPC may have with All. Each look sends a request for each group, and all nodes share one rate limit.
	mostGroups = 100
)

// errMany is the end of an error about more target groups than can be looked at.
var errMany = errors.New("too many to look at: name those of this node in load_balancers.target_groups")

// lasting reports whether a look failed for a reason that does not pass soon, so that another look is of no use.
func lasting(err error) bool {
	_, refused := errors.AsType[role.RefusedError](err)
	return refused || errors.Is(err, errMany) || errors.Is(err, role.ErrNoRole)
}

// missing reports whether a request failed because the target group does not exist.
func missing(err error) bool { return role.Code(err) == "TargetGroupNotFound" }

// name returns a short name for a target group. For arn:aws:elasticloadbalancing:REGION:ACCOUNT:targetgroup/web/0123456789abcdef it is tg/web. Any
// other form is returned as it is.
func name(arn string) string {
	if parts := strings.Split(arn, "/"); len(parts) == 3 {
		return "tg/" + parts[1]
	}
	return arn
}

// group is a target group.
type group struct {
	arn string
	// states are the machine's states in the group by the last look, one for each port. The state "unused" is left out: such a target gets no
	// requests.
	states []types.TargetHealthStateEnum
}

// join joins the different ones of some states to a text such as "draining and healthy".
func join(states []types.TargetHealthStateEnum) string {
	var different []string
	for _, state := range states {
		if !slices.Contains(different, string(state)) {
			different = append(different, string(state))
		}
	}
	return strings.Join(different, " and ")
}

// service asks Elastic Load Balancing about this instance.
type service struct {
	opts     Options
	instance string                         // this instance's ID; "" before find
	sdk      *elasticloadbalancingv2.Client // nil before find
	open     []*group                       // the groups in which the machine may still be a target
}

// find makes the client for Elastic Load Balancing, and the list of target groups: those that Options name or, with All, those of the VPC. It asks the
// metadata service for the instance's ID, region and credentials.
func (s *service) find(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, findLimit)
	defer cancel()
	instance, cfg, err := role.Own(ctx, s.opts.Metadata, s.opts.AWS)
	if err != nil {
		return err
	}
	// The SDK does not retry a request: Wait looks again.
	sdk := elasticloadbalancingv2.NewFromConfig(cfg, func(o *elasticloadbalancingv2.Options) { o.Retryer = aws.NopRetryer{} })
	named := s.opts.Groups
	if slices.Contains(named, All) {
		if named, err = s.inVPC(ctx, sdk); err != nil {
			return err
		}
	}
	s.open = nil
	for _, arn := range named {
		s.open = append(s.open, &group{arn: arn})
	}
	s.instance, s.sdk = instance, sdk
	return nil
}

// inVPC returns the ARNs of the target groups in the instance's VPC whose targets are instances. If the metadata service does not have the VPC, it
// returns those of all VPCs.
func (s *service) inVPC(ctx context.Context, sdk *elasticloadbalancingv2.Client) (arns []string, err error) {
	vpc := ""
	mac, err := s.opts.Metadata.Line(ctx, "mac")
	if err == nil {
		vpc, err = s.opts.Metadata.Line(ctx, "network/interfaces/macs/"+mac+"/vpc-id")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("asking the metadata service for the instance's VPC: %w", err)
	}
	for pages := elasticloadbalancingv2.NewDescribeTargetGroupsPaginator(sdk, &elasticloadbalancingv2.DescribeTargetGroupsInput{}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, role.Explain(describeGroups, findLimit, err)
		}
		for _, g := range page.TargetGroups {
			isInVPC := vpc == "" || aws.ToString(g.VpcId) == vpc
			if isInVPC && g.TargetType == types.TargetTypeEnumInstance {
				arns = append(arns, aws.ToString(g.TargetGroupArn))
			}
		}
	}
	if len(arns) > mostGroups { // The operator has to name groups.
		return nil, fmt.Errorf("the instance's VPC has %d target groups, %w", len(arns), errMany)
	}
	return arns, nil
}

// look asks once for the machine's states in each open group, one group after the other. It takes groups in which the machine has no state off the
// list: after the first look, which also finds the groups, few are left. After an error, the remaining groups are not asked about.
func (s *service) look(ctx context.Context) error {
	if s.sdk == nil {
		if err := s.find(ctx); err != nil {
			return err
		}
	}
	for _, g := range s.open {
		if err := s.health(ctx, g); err != nil && !missing(err) { // A group that was deleted has no targets.
			return err
		}
	}
	s.open = slices.DeleteFunc(s.open, func(g *group) bool { return len(g.states) == 0 })
	return nil
}

// health asks for the machine's states in a group, and sets g.states. It asks for all targets of the group: a request for single targets would have to
// name their ports.
func (s *service) health(ctx context.Context, g *group) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	g.states = nil
	out, err := s.sdk.DescribeTargetHealth(ctx, &elasticloadbalancingv2.DescribeTargetHealthInput{TargetGroupArn: &g.arn})
	if err != nil {
		return role.Explain(describeHealth, answerLimit, err)
	}
	for _, d := range out.TargetHealthDescriptions {
		isComplete := d.Target != nil && d.TargetHealth != nil
		if !isComplete || aws.ToString(d.Target.Id) != s.instance {
			continue
		}
		switch state := d.TargetHealth.State; state {
		case types.TargetHealthStateEnumUnused: // An unused target gets no requests.
		case types.TargetHealthStateEnumUnhealthyDraining: // It is waited for like any target that drains.
			g.states = append(g.states, types.TargetHealthStateEnumDraining)
		default:
			g.states = append(g.states, state)
		}
	}
	return nil
}
