package instances

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// longestPage is how many instances EC2 describes in one answer; it is the most.
const longestPage = 1000

const (
	// attemptPatience bounds one attempt: a connection that is dead must not use up all the time there is.
	attemptPatience = 8 * time.Second
	// firstPause and longestPause are how long a request is left alone that fails in a way that may pass. It is repeated
	// for as long as there is time: a node whose instance is gone in two minutes may wait for the answer. Since there is
	// one request for up to 200 questions, that is a request each two seconds even in a storm.
	firstPause, longestPause = time.Second, 2 * time.Second
)

// hurried are the rules for repeating what fails, where the SDK does that.
func hurried(o *retry.StandardOptions) {
	o.MaxAttempts = int(patience / longestPause)
	o.Backoff = retry.BackoffDelayerFunc(func(attempt int, _ error) (time.Duration, error) {
		return role.Pause(attempt, firstPause, longestPause), nil
	})
}

// fails are the SDK's rules for what is worth repeating.
var fails = retry.NewStandard()

// page asks EC2 for a part of a list.
func (c *Catalog) page(ctx context.Context, in *ec2.DescribeInstancesInput) (*ec2.DescribeInstancesOutput, error) {
	return persist(ctx, func(ctx context.Context) (*ec2.DescribeInstancesOutput, error) {
		return c.ec2.DescribeInstances(ctx, in)
	})
}

// persist asks EC2 until there is an answer, no use in asking again, or no time. The SDK would not say, at the end of the
// time, what EC2 has said last.
func persist[T any](ctx context.Context, ask func(context.Context) (*T, error)) (*T, error) {
	for attempt := 1; ; attempt++ {
		trying, cancel := context.WithTimeout(ctx, attemptPatience)
		answer, err := ask(trying)
		silent := trying.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return answer, nil
		}
		passes := silent || fails.IsErrorRetryable(err) // It tells by the answer's status, too.
		if api, ok := errors.AsType[smithy.APIError](err); ok {
			err = api // All else that the SDK says is of no use to people.
		}
		if ctx.Err() != nil || !passes || !sleep(ctx, role.Pause(attempt, firstPause, longestPause)) {
			return nil, err
		}
	}
}

// sleep waits, and tells whether ctx still stands.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// list asks for all instances that a filter lets through, page by page.
func (c *Catalog) list(ctx context.Context, filter string, values []string) ([]types.Instance, error) {
	in := &ec2.DescribeInstancesInput{MaxResults: new(int32(longestPage)), Filters: []types.Filter{{Name: &filter, Values: values}}}
	var all []types.Instance
	for {
		answer, err := c.page(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, r := range answer.Reservations {
			all = append(all, r.Instances...)
		}
		if in.NextToken = answer.NextToken; aws.ToString(in.NextToken) == "" {
			return all, nil
		}
	}
}

// stateOf is EC2's word for how an instance is.
func stateOf(i types.Instance) string {
	if i.State == nil {
		return ""
	}
	return string(i.State.Name)
}

// tagOf is the value of a tag; "" without it.
func tagOf(i types.Instance, key string) string {
	for _, tag := range i.Tags {
		if aws.ToString(tag.Key) == key {
			return aws.ToString(tag.Value)
		}
	}
	return ""
}
