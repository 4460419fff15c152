// Package ec2 asks EC2 about instances, for nth-queue: their state, their addresses, whether they are managed, to which cluster they belong,
// and what is scheduled for them (status.go). It also has EC2 change them (requests.go). Newcomers begin with Catalog.
//
// Many instances are looked up at once when a queue fills, and AWS limits requests for the whole account. So lookups that come within moments
// of each other share a request (batch.go).
package ec2

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nth-project/nth/pkg/role"
)

// Instance is what EC2 says of one instance.
type Instance struct {
	ID string
	// State is the state by EC2's name: "pending", "running", "stopped", "terminated", ...
	State string
	// Launched is when it was last launched or started, by AWS's clock.
	Launched time.Time
	// Address is its private IPv4 address; empty once it is terminated.
	Address string
	// Group is its Auto Scaling group; empty if it is in none.
	Group string
	// Stays is why it cannot be stopped and started again; "" if it can.
	Stays string
	// Managed is set if the instance has a tag with the key Options.Tag, or that key is "".
	Managed bool
	// Clusters are the names of the Kubernetes clusters in its tags (ClusterTag). AWS forgets the tags of an instance some
	// time after it is terminated.
	Clusters []string
}

// Gone reports whether the instance is terminated or being terminated. A stopped instance is not gone, as it can be started again.
func (i Instance) Gone() bool { return i.State == "terminated" || i.State == "shutting-down" }

// Runs reports whether the instance runs or is being started.
func (i Instance) Runs() bool { return i.State == "running" || i.State == "pending" }

// ClusterTag is the prefix of the tags by which AWS, Kubernetes and their tools mark what belongs to a cluster. The
// cluster's name follows; the value is "owned" or "shared".
const ClusterTag = "kubernetes.io/cluster/"

// groupTag is the tag by which Auto Scaling marks its instances.
const groupTag = "aws:autoscaling:groupName"

const (
	// lookupTimeout bounds one lookup, with the SDK's retries.
	lookupTimeout = 15 * time.Second
	// maxBatch is how many instances are looked up in one request: a filter takes 200 values.
	maxBatch = 200
	// maxPage is how many instances EC2 describes in one answer, at most.
	maxPage = 1000
)

// Options say how AWS is reached, and which instances are managed.
type Options struct {
	AWS aws.Config
	// Tag is the key of the tag that makes an instance managed; if it is "", all are.
	Tag string
}

// Catalog looks instances up. Its methods may be called from several goroutines. Their errors wrap ErrRefused if IAM does not allow the request.
type Catalog struct {
	tag string
	ec2 *ec2.Client
	// byID and byAddress find instances by their ID and their private address.
	byID, byAddress *batcher
}

// New returns a Catalog. It makes no request.
func New(opts Options) *Catalog {
	c := &Catalog{tag: opts.Tag, ec2: ec2.NewFromConfig(opts.AWS)}
	// IDs are looked up by a filter, too: EC2 refuses a request for a list of IDs if it does not know one of them.
	c.byID = &batcher{query: c.list, filter: "instance-id", value: func(i Instance) string { return i.ID }}
	c.byAddress = &batcher{query: c.list, filter: "private-ip-address", value: func(i Instance) string { return i.Address }}
	return c
}

// ErrRefused means that IAM does not allow a request.
var ErrRefused = errors.New("IAM does not allow the request")

// explain returns the error of a request for an action in plain words. The result wraps ErrRefused if IAM does not allow the action.
func explain(action string, err error) error {
	if role.Refused(err) {
		return fmt.Errorf("%w %s", ErrRefused, action)
	}
	return role.Explain(action, lookupTimeout, err)
}

// Look asks EC2 for an instance by its ID. known is false if EC2 does not know the instance, or has forgotten it.
func (c *Catalog) Look(ctx context.Context, id string) (found Instance, known bool, err error) {
	all, err := c.byID.get(ctx, id)
	if err != nil {
		return Instance{}, false, fmt.Errorf("asking EC2 about the instance %s: %w", id, err)
	}
	if len(all) == 0 {
		return Instance{}, false, nil
	}
	return all[0], true, nil
}

// AtAddress returns the instances that have this private IPv4 address. Each VPC may have one.
func (c *Catalog) AtAddress(ctx context.Context, address string) ([]Instance, error) {
	found, err := c.byAddress.get(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances with the private address %s: %w", address, err)
	}
	return found, nil
}

// InReservation returns the IDs of the instances in a capacity reservation, except those that are Gone. It asks EC2 at each call.
func (c *Catalog) InReservation(ctx context.Context, reservation string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := c.list(ctx, "capacity-reservation-id", []string{reservation})
	if err != nil {
		return nil, fmt.Errorf("asking EC2 for the instances in the capacity reservation %s: %w", reservation, err)
	}
	var ids []string
	for _, i := range found {
		if !i.Gone() {
			ids = append(ids, i.ID)
		}
	}
	return ids, nil
}

// GroupOf returns the name of an Auto Scaling group that one of the first maxBatch instances is in, for "nth-queue check". It returns "" if no
// instance is in a group, or EC2 does not answer.
func (c *Catalog) GroupOf(ctx context.Context, ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, _ := c.list(ctx, "instance-id", ids[:min(len(ids), maxBatch)]) // "nth-queue check" tries Rights, and reports what is missing.
	for _, i := range found {
		if i.Group != "" {
			return i.Group
		}
	}
	return ""
}

// list returns the instances for which an EC2 filter has one of the values, from all pages of the answer.
func (c *Catalog) list(ctx context.Context, filter string, values []string) ([]Instance, error) {
	pages := ec2.NewDescribeInstancesPaginator(c.ec2, &ec2.DescribeInstancesInput{
		MaxResults: new(int32(maxPage)), Filters: []types.Filter{{Name: &filter, Values: values}},
	})
	var all []Instance
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, explain(describeInstances, err)
		}
		for _, reservation := range page.Reservations { // EC2 groups instances by the request that launched them.
			for _, instance := range reservation.Instances {
				all = append(all, c.convert(instance))
			}
		}
	}
	return all, nil
}

// convert makes an Instance of the SDK's description.
func (c *Catalog) convert(described types.Instance) Instance {
	found := Instance{
		ID: aws.ToString(described.InstanceId), Address: aws.ToString(described.PrivateIpAddress), Launched: aws.ToTime(described.LaunchTime),
		Managed: c.tag == "", // Without a tag in Options, every instance is managed.
	}
	if described.State != nil {
		found.State = string(described.State.Name)
	}
	switch {
	case described.InstanceLifecycle == types.InstanceLifecycleTypeSpot:
		found.Stays = "the instance is a spot instance"
	case described.RootDeviceType == types.DeviceTypeInstanceStore:
		found.Stays = "the root device of the instance is an instance store"
	}
	for _, tag := range described.Tags {
		key, value := aws.ToString(tag.Key), aws.ToString(tag.Value)
		found.Managed = found.Managed || key == c.tag
		if key == groupTag {
			found.Group, found.Stays = value, "its Auto Scaling group would replace the instance"
		}
		if name, ok := strings.CutPrefix(key, ClusterTag); ok && name != "" {
			found.Clusters = append(found.Clusters, name)
		}
	}
	return found
}

// The actions of a Catalog, by their names in IAM policies.
const (
	describeInstances      = "ec2:DescribeInstances"
	describeInstanceStatus = "ec2:DescribeInstanceStatus"
)

// Rights lists the permissions that a Catalog needs, for "nth-queue check". nth-queue cannot work without those in must: it would not know which
// instances have the tag of Options. Without those in may it lacks what their texts say.
func (c *Catalog) Rights() (must, may []role.Right) {
	instances := role.Right{
		Name: describeInstances, Without: "late stops and the end of a Capacity Block drain no node, and the cluster of an instance without a Node is unknown",
		Try: func(ctx context.Context) error {
			_, err := c.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{DryRun: new(true)})
			return err
		},
	}
	status := role.Right{
		Name: describeInstanceStatus, Without: "nth-queue sees neither scheduled maintenance nor failed status checks",
		Try: func(ctx context.Context) error {
			_, err := c.ec2.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{DryRun: new(true)})
			return err
		},
	}
	if c.tag != "" {
		return []role.Right{instances}, []role.Right{status}
	}
	return nil, []role.Right{instances, status} // Every instance is managed, so EC2 need not be asked for tags.
}
