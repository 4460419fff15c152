package instances

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// Right is something that a Catalog asks of AWS, by its name in IAM policies.
type Right string

// The rights of a Catalog. It asks for the tags of groups only where it looks for a tag.
const (
	DescribeInstances      Right = "ec2:DescribeInstances"
	DescribeInstanceStatus Right = "ec2:DescribeInstanceStatus"
	DescribeTags           Right = "autoscaling:DescribeTags"
)

// trial bounds a request that somebody waits for.
const trial = 10 * time.Second

// May tries a right. All only look.
func (c *Catalog) May(ctx context.Context, r Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, trial)
	defer cancel()
	var err error
	switch r {
	case DescribeTags:
		_, err = c.groups.DescribeTags(ctx, &autoscaling.DescribeTagsInput{MaxRecords: new(int32(1))})
	case DescribeInstanceStatus:
		_, err = c.ec2.DescribeInstanceStatus(ctx, &ec2.DescribeInstanceStatusInput{DryRun: new(true)})
	case DescribeInstances:
		_, err = c.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{DryRun: new(true)})
	}
	if api, ok := errors.AsType[smithy.APIError](err); err == nil || ok && api.ErrorCode() == "DryRunOperation" {
		return true, nil // It would have been answered.
	}
	if role.Refused(err) {
		return false, nil
	}
	return false, fmt.Errorf("trying %s: %w", r, err)
}

// Marks names the Auto Scaling groups that instances are in, and the clusters that they are tagged to be of, each once and in order. Of
// more instances than go in one request it asks about some.
func (c *Catalog) Marks(ctx context.Context, ids []string) (groups, clusters []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, trial)
	defer cancel()
	found, err := c.list(ctx, "instance-id", ids[:min(len(ids), most)])
	if err != nil {
		return nil, nil, fmt.Errorf("asking EC2 for the tags of instances: %w", err)
	}
	for _, i := range found {
		if group := tagOf(i, groupTag); group != "" {
			groups = append(groups, group)
		}
		clusters = append(clusters, c.describedBy(i).Clusters...)
	}
	slices.Sort(groups)
	slices.Sort(clusters)
	return slices.Compact(groups), slices.Compact(clusters), nil
}
