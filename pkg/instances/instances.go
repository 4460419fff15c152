// Package instances says what EC2 and Auto Scaling know of instances: their state, their names, whether they are
// managed, and of which cluster they are.
//
// Many are asked about at once when a queue fills, and the APIs are throttled for the whole account. So questions that
// come within moments of each other go in one request, answers are remembered for minutes, and what is throttled is
// repeated at the pace that AWS allows.
package instances

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	autoscalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Instance is what is known of one instance.
type Instance struct {
	ID string
	// State is EC2's word for it: running, stopped, terminated, ...
	State string
	// DNS is its private DNS name; empty once it is terminated.
	DNS string
	// Managed tells whether the instance, or its Auto Scaling group, has the tag that is looked for.
	Managed bool
	// Clusters are the names of the Kubernetes clusters that it is tagged to be of (ClusterTag). AWS forgets the tags of an instance
	// some time after it is terminated.
	Clusters []string
}

// Gone tells whether the instance will not run any more.
func (i Instance) Gone() bool { return i.State == "terminated" || i.State == "shutting-down" }

// Runs tells whether the instance runs, or is being started.
func (i Instance) Runs() bool { return i.State == "running" || i.State == "pending" }

// ClusterTag begins the keys of the tags by which AWS, Kubernetes and their tools mark what belongs to a cluster. The cluster's name
// follows; the value is "owned" or "shared".
const ClusterTag = "kubernetes.io/cluster/"

// groupTag is the tag by which Auto Scaling marks its instances.
const groupTag = "aws:autoscaling:groupName"

const (
	// patience bounds one question, with its repetitions.
	patience = 30 * time.Second
	// most is how many are asked about in one request: a filter takes 200 values.
	most = 200
)

// Options say where AWS is asked, and for what.
type Options struct {
	AWS aws.Config
	// Tag is the key of the tag that makes an instance managed; with "" all are.
	Tag string
}

// Catalog answers questions about instances. Its methods may be called from several goroutines.
type Catalog struct {
	tag       string
	ec2       *ec2.Client
	groups    *autoscaling.Client
	instances *gatherer[described]
	// tagged tells which groups have the tag, and members the IDs of their instances.
	tagged  *gatherer[bool]
	members *gatherer[[]string]
	// statuses are never remembered: who asks for one is about to act.
	statuses *gatherer[Status]
}

// New returns a catalog that has asked nothing yet.
func New(opts Options) *Catalog {
	opts.AWS.Retryer = func() aws.Retryer {
		return retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) { o.StandardOptions = append(o.StandardOptions, hurried) })
	}
	c := &Catalog{tag: opts.Tag, groups: autoscaling.NewFromConfig(opts.AWS)}
	c.ec2 = ec2.NewFromConfig(opts.AWS, func(o *ec2.Options) { o.Retryer = aws.NopRetryer{} })
	c.instances = newGatherer(c.describe)
	c.tagged = newGatherer(c.groupTags)
	c.members = newGatherer(c.groupMembers)
	c.statuses = newGatherer(c.describeStatus)
	return c
}

// Look asks about one instance; known is false if EC2 does not know it (any more). The answer may be minutes old.
func (c *Catalog) Look(ctx context.Context, id string) (found Instance, known bool, err error) {
	return c.judge(ctx, id, c.instances.ask)
}

// LookAnew is Look for those who have to know how things stand now: nothing counts that was said before.
func (c *Catalog) LookAnew(ctx context.Context, id string) (found Instance, known bool, err error) {
	return c.judge(ctx, id, c.instances.anew)
}

// judge asks about one instance, and whether it is managed. Its group is asked about here, where that fails for this one alone.
func (c *Catalog) judge(
	ctx context.Context, id string, ask func(context.Context, string) (described, bool, error),
) (found Instance, known bool, err error) {
	said, known, err := ask(ctx, id)
	if err == nil && said.group != "" {
		said.Managed, _, err = c.tagged.ask(ctx, said.group)
	}
	return said.Instance, known, about(id, err)
}

func about(id string, err error) error {
	if err != nil {
		return fmt.Errorf("asking EC2 about %s: %w", id, err)
	}
	return nil
}

// InGroup asks for the IDs of the instances of an Auto Scaling group. The answer may be minutes old.
func (c *Catalog) InGroup(ctx context.Context, group string) ([]string, error) {
	ids, _, err := c.members.ask(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances of the group %s: %w", group, err)
	}
	return ids, nil
}

// InReservation asks for the IDs of the instances that run in a capacity reservation.
func (c *Catalog) InReservation(ctx context.Context, reservation string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	raw, err := c.list(ctx, "capacity-reservation-id", []string{reservation})
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances in %s: %w", reservation, err)
	}
	var ids []string
	for _, i := range raw {
		if found := c.describedBy(i); !found.Gone() {
			ids = append(ids, found.ID)
		}
	}
	return ids, nil
}

// described is what EC2 says of an instance. Its group is named if that decides whether it is managed.
type described struct {
	Instance
	group string
}

// describe asks about many. A filter is used, since one ID that is unknown makes a request with IDs fail whole.
func (c *Catalog) describe(ctx context.Context, ids []string) (map[string]described, error) {
	raw, err := c.list(ctx, "instance-id", ids)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]described, len(raw))
	for _, i := range raw {
		found := c.describedBy(i)
		byID[found.ID] = found
	}
	return byID, nil
}

// describedBy turns EC2's description into ours.
func (c *Catalog) describedBy(i types.Instance) described {
	found := described{Instance: Instance{
		ID: aws.ToString(i.InstanceId), State: stateOf(i), DNS: aws.ToString(i.PrivateDnsName), Managed: c.tag == "",
	}}
	for _, tag := range i.Tags {
		found.Managed = found.Managed || aws.ToString(tag.Key) == c.tag
		if name, is := strings.CutPrefix(aws.ToString(tag.Key), ClusterTag); is && name != "" {
			found.Clusters = append(found.Clusters, name)
		}
	}
	if !found.Managed {
		found.group = tagOf(i, groupTag)
	}
	return found
}

// groupMembers asks which instances are in groups.
func (c *Catalog) groupMembers(ctx context.Context, groups []string) (map[string][]string, error) {
	raw, err := c.list(ctx, "tag:"+groupTag, groups)
	if err != nil {
		return nil, err
	}
	members := map[string][]string{}
	for _, i := range raw {
		group := tagOf(i, groupTag)
		members[group] = append(members[group], aws.ToString(i.InstanceId))
	}
	return members, nil
}

// groupTags asks which groups have the tag.
func (c *Catalog) groupTags(ctx context.Context, groups []string) (map[string]bool, error) {
	in := &autoscaling.DescribeTagsInput{Filters: []autoscalingtypes.Filter{
		{Name: aws.String("auto-scaling-group"), Values: groups}, {Name: aws.String("key"), Values: []string{c.tag}},
	}}
	tagged := map[string]bool{}
	for _, group := range groups {
		tagged[group] = false
	}
	for {
		out, err := c.groups.DescribeTags(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, tag := range out.Tags {
			tagged[aws.ToString(tag.ResourceId)] = true
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			return tagged, nil
		}
	}
}
