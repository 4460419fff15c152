// Package ec2 says what EC2 and Auto Scaling know of instances: their state, their names, whether they are
// managed, and to which cluster they belong.
//
// Many are looked up at once when a queue fills, and the APIs are throttled for the whole account. So lookups that come
// within moments of each other share a request, answers are cached for minutes, and throttled requests are repeated at the
// pace that AWS allows.
package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	autoscalingtypes "github.com/aws/aws-sdk-go-v2/service/autoscaling/types"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// Instance is what is known of one instance.
type Instance struct {
	ID string
	// State is EC2's word for it: running, stopped, terminated, ...
	State string
	// Address is its private IPv4 address; empty once it is terminated.
	Address string
	// Managed is set if the instance, or its Auto Scaling group, has the tag of Options.
	Managed bool
	// Clusters are the names of the Kubernetes clusters in its tags (ClusterTag). AWS forgets the tags of an instance some
	// time after it is terminated.
	Clusters []string
}

// Gone reports whether the instance will not run any more.
func (i Instance) Gone() bool { return i.State == "terminated" || i.State == "shutting-down" }

// Runs reports whether the instance runs, or is being started.
func (i Instance) Runs() bool { return i.State == "running" || i.State == "pending" }

// ClusterTag is the prefix of the tags by which AWS, Kubernetes and their tools mark what belongs to a cluster. The
// cluster's name follows; the value is "owned" or "shared".
const ClusterTag = "kubernetes.io/cluster/"

// groupTag is the tag by which Auto Scaling marks its instances.
const groupTag = "aws:autoscaling:groupName"

const (
	// lookupTimeout bounds one lookup, with its retries.
	lookupTimeout = 30 * time.Second
	// maxBatch is how many instances are looked up in one request: a filter takes 200 values.
	maxBatch = 200
	// maxPage is how many instances EC2 describes in one answer, at most.
	maxPage = 1000
	// probeTimeout bounds a request while somebody waits at a terminal.
	probeTimeout = 10 * time.Second
)

// Options say how AWS is reached, and which instances are managed.
type Options struct {
	AWS aws.Config
	// Tag is the key of the tag that makes an instance managed; if it is "", all are.
	Tag string
}

// Catalog looks instances up. Its methods may be called from several goroutines.
type Catalog struct {
	tag          string
	ec2          *ec2.Client
	autoscaling  *autoscaling.Client
	instances    *batcher[described]
	atAddress    *batcher[[]Instance]
	groupTagged  *batcher[bool]     // which groups have the tag
	groupMembers *batcher[[]string] // the IDs of their instances
	statuses     *batcher[Status]   // never from the cache: the caller is about to act
}

// New returns a catalog that has made no request yet.
func New(opts Options) *Catalog {
	opts.AWS.Retryer = func() aws.Retryer {
		return retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) { o.StandardOptions = append(o.StandardOptions, retryOptions) })
	}
	c := &Catalog{tag: opts.Tag, autoscaling: autoscaling.NewFromConfig(opts.AWS)}
	c.ec2 = ec2.NewFromConfig(opts.AWS, func(o *ec2.Options) { o.Retryer = aws.NopRetryer{} })
	c.instances = newBatcher(c.describeInstances)
	c.atAddress = newBatcher(c.describeAddresses)
	c.groupTagged = newBatcher(c.describeGroupTags)
	c.groupMembers = newBatcher(c.describeGroupMembers)
	c.statuses = newBatcher(c.describeStatuses)
	return c
}

// Look looks an instance up; known is false if EC2 does not know it (any more). The answer may be minutes old.
func (c *Catalog) Look(ctx context.Context, id string) (found Instance, known bool, err error) {
	return c.look(ctx, id, c.instances.get)
}

// LookAnew is Look with an answer to a request that is made now.
func (c *Catalog) LookAnew(ctx context.Context, id string) (found Instance, known bool, err error) {
	return c.look(ctx, id, c.instances.fetch)
}

// look looks an instance up, and its group only then, so that a failure there affects this instance alone.
func (c *Catalog) look(
	ctx context.Context, id string, get func(context.Context, string) (described, bool, error),
) (found Instance, known bool, err error) {
	d, known, err := get(ctx, id)
	if err == nil && d.group != "" {
		d.Managed, _, err = c.groupTagged.get(ctx, d.group)
	}
	if err != nil {
		err = fmt.Errorf("asking EC2 about %s: %w", id, refused(err))
	}
	return d.Instance, known, err
}

// AtAddress returns the instances that have a private IP address, in any VPC. The answer may be minutes old.
func (c *Catalog) AtAddress(ctx context.Context, address string) ([]Instance, error) {
	found, _, err := c.atAddress.get(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances at %s: %w", address, refused(err))
	}
	return found, nil
}

// InGroup returns the IDs of the instances of an Auto Scaling group. The answer may be minutes old.
func (c *Catalog) InGroup(ctx context.Context, group string) ([]string, error) {
	ids, _, err := c.groupMembers.get(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances of the group %s: %w", group, err)
	}
	return ids, nil
}

// InReservation returns the IDs of the instances that run in a capacity reservation.
func (c *Catalog) InReservation(ctx context.Context, reservation string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	raw, err := c.list(ctx, "capacity-reservation-id", []string{reservation})
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances in %s: %w", reservation, err)
	}
	var ids []string
	for _, i := range raw {
		if found := c.convert(i); !found.Gone() {
			ids = append(ids, found.ID)
		}
	}
	return ids, nil
}

// Marks returns the Auto Scaling groups of instances, and the clusters in their tags, each sorted and without duplicates. It
// looks at no more instances than fit into one request.
func (c *Catalog) Marks(ctx context.Context, ids []string) (groups, clusters []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	raw, err := c.list(ctx, "instance-id", ids[:min(len(ids), maxBatch)])
	if err != nil {
		return nil, nil, fmt.Errorf("asking EC2 for the tags of instances: %w", err)
	}
	for _, i := range raw {
		if group := tagValue(i, groupTag); group != "" {
			groups = append(groups, group)
		}
		clusters = append(clusters, c.convert(i).Clusters...)
	}
	slices.Sort(groups)
	slices.Sort(clusters)
	return slices.Compact(groups), slices.Compact(clusters), nil
}

// described is an instance, and its group if that decides whether it is managed.
type described struct {
	Instance
	group string
}

// describeInstances uses a filter, because a single unknown ID fails a request with IDs.
func (c *Catalog) describeInstances(ctx context.Context, ids []string) (map[string]described, error) {
	raw, err := c.list(ctx, "instance-id", ids)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]described, len(raw))
	for _, i := range raw {
		found := c.convert(i)
		byID[found.ID] = found
	}
	return byID, nil
}

func (c *Catalog) convert(i types.Instance) described {
	found := described{Instance: Instance{ID: aws.ToString(i.InstanceId), Address: aws.ToString(i.PrivateIpAddress), Managed: c.tag == ""}}
	if i.State != nil {
		found.State = string(i.State.Name)
	}
	for _, tag := range i.Tags {
		found.Managed = found.Managed || aws.ToString(tag.Key) == c.tag
		if name, ok := strings.CutPrefix(aws.ToString(tag.Key), ClusterTag); ok && name != "" {
			found.Clusters = append(found.Clusters, name)
		}
	}
	if !found.Managed {
		found.group = tagValue(i, groupTag)
	}
	return found
}

// tagValue is the value of a tag; "" without it.
func tagValue(i types.Instance, key string) string {
	for _, tag := range i.Tags {
		if aws.ToString(tag.Key) == key {
			return aws.ToString(tag.Value)
		}
	}
	return ""
}

func (c *Catalog) describeAddresses(ctx context.Context, addresses []string) (map[string][]Instance, error) {
	raw, err := c.list(ctx, "private-ip-address", addresses)
	if err != nil {
		return nil, err
	}
	at := map[string][]Instance{}
	for _, i := range raw {
		found := c.convert(i).Instance
		at[found.Address] = append(at[found.Address], found)
	}
	return at, nil
}

func (c *Catalog) describeGroupMembers(ctx context.Context, groups []string) (map[string][]string, error) {
	raw, err := c.list(ctx, "tag:"+groupTag, groups)
	if err != nil {
		return nil, err
	}
	members := map[string][]string{}
	for _, i := range raw {
		group := tagValue(i, groupTag)
		members[group] = append(members[group], aws.ToString(i.InstanceId))
	}
	return members, nil
}

func (c *Catalog) describeGroupTags(ctx context.Context, groups []string) (map[string]bool, error) {
	pages := autoscaling.NewDescribeTagsPaginator(c.autoscaling, &autoscaling.DescribeTagsInput{Filters: []autoscalingtypes.Filter{
		{Name: aws.String("auto-scaling-group"), Values: groups}, {Name: aws.String("key"), Values: []string{c.tag}},
	}})
	tagged := map[string]bool{}
	for _, group := range groups {
		tagged[group] = false
	}
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, tag := range page.Tags {
			tagged[aws.ToString(tag.ResourceId)] = true
		}
	}
	return tagged, nil
}

// list returns all instances that match a filter.
func (c *Catalog) list(ctx context.Context, filter string, values []string) ([]types.Instance, error) {
	pages := ec2.NewDescribeInstancesPaginator(c.ec2, &ec2.DescribeInstancesInput{
		MaxResults: new(int32(maxPage)), Filters: []types.Filter{{Name: &filter, Values: values}},
	})
	var all []types.Instance
	for pages.HasMorePages() {
		page, err := retryEC2(ctx, func(ctx context.Context) (*ec2.DescribeInstancesOutput, error) { return pages.NextPage(ctx) })
		if err != nil {
			return nil, err
		}
		for _, r := range page.Reservations {
			all = append(all, r.Instances...)
		}
	}
	return all, nil
}

// Right is an action that a Catalog needs, by its name in IAM policies.
type Right string

// The rights of a Catalog. It needs the tags of groups only if Options have a tag.
const (
	DescribeInstances      Right = "ec2:DescribeInstances"
	DescribeInstanceStatus Right = "ec2:DescribeInstanceStatus"
	DescribeTags           Right = "autoscaling:DescribeTags"
)

// CheckPermission tries a right. None of them changes anything.
func (c *Catalog) CheckPermission(ctx context.Context, r Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var err error
	switch r {
	case DescribeTags:
		_, err = c.autoscaling.DescribeTags(ctx, &autoscaling.DescribeTagsInput{MaxRecords: new(int32(1))})
	case DescribeInstanceStatus:
		_, err = c.ec2.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{DryRun: new(true)})
	case DescribeInstances:
		_, err = c.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{DryRun: new(true)})
	}
	if api, ok := errors.AsType[smithy.APIError](err); err == nil || ok && api.ErrorCode() == "DryRunOperation" {
		return true, nil // It would have succeeded.
	}
	if role.Refused(err) {
		return false, nil
	}
	return false, fmt.Errorf("trying %s: %w", r, err)
}
