package instances

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/nth-project/nth/pkg/role"
)

// Status is what EC2 has scheduled for an instance, and how its status checks stand.
type Status struct {
	// Planned are its events, those included that are over: EC2 lists them for up to a week.
	Planned []Planned
	// Impaired says which status check fails, "system" before "instance"; "" if none does. Since is when it began to, zero if EC2
	// does not tell.
	Impaired string
	Since    time.Time
}

// Planned is an event that EC2 has scheduled for an instance.
type Planned struct {
	// ID is EC2's, as the instance's own metadata have it, and Code what is going to happen: system-reboot, instance-stop, ...
	ID, Code, Description string
	// NotBefore is when it begins at the earliest, and NotAfter when it has ended at the latest; zero where EC2 does not tell.
	NotBefore, NotAfter time.Time
	// Canceled and Completed tell that it is over.
	Canceled, Completed bool
}

// ErrRefused says that IAM does not let us ask.
var ErrRefused = errors.New("it is not allowed")

const (
	// mostNamed is how many instances can be named in a question about their status. There is no filter for that.
	mostNamed = 100
	// impaired is EC2's word for a status check that fails.
	impaired = string(types.SummaryStatusImpaired)
)

// eventCodes are the codes of events that EC2 schedules.
var eventCodes = []types.EventCode{
	types.EventCodeInstanceReboot, types.EventCodeSystemReboot, types.EventCodeSystemMaintenance, types.EventCodeInstanceRetirement,
	types.EventCodeInstanceStop,
}

// Schedules tells whether EC2 schedules events of that code: it lists those that it does.
func Schedules(code string) bool { return slices.Contains(eventCodes, types.EventCode(code)) }

// Status asks how things stand now for one instance, running or not; known is false if EC2 does not know it (any more). The error is
// ErrRefused where IAM does not allow to ask.
func (c *Catalog) Status(ctx context.Context, id string) (found Status, known bool, err error) {
	found, known, err = c.statuses.anew(ctx, id)
	if err != nil {
		return Status{}, false, fmt.Errorf("asking EC2 for the status of %s: %w", id, refused(err))
	}
	return found, known, nil
}

// Notable asks for all instances of the region, by ID, for which events are scheduled and, with checks, for those whose status checks
// fail. The error is ErrRefused where IAM does not allow to ask.
func (c *Catalog) Notable(ctx context.Context, checks bool) (map[string]Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	codes := make([]string, len(eventCodes))
	for i, code := range eventCodes {
		codes[i] = string(code)
	}
	filters := []types.Filter{{Name: aws.String("event.code"), Values: codes}}
	if checks { // A request with both would be about instances of which both fail.
		for _, name := range []string{"instance-status.status", "system-status.status"} {
			filters = append(filters, types.Filter{Name: &name, Values: []string{impaired}})
		}
	}
	all := map[string]Status{}
	for _, filter := range filters {
		some, err := c.listStatus(ctx, &ec2.DescribeInstanceStatusInput{MaxResults: new(int32(longestPage)), Filters: []types.Filter{filter}})
		if err != nil {
			return nil, fmt.Errorf("asking EC2 for scheduled events and failed status checks: %w", refused(err))
		}
		maps.Copy(all, some)
	}
	return all, nil
}

// refused is ErrRefused with what AWS has said, if that is what it has said.
func refused(err error) error {
	if role.Refused(err) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// describeStatus asks about many, as many at a time as may be named.
func (c *Catalog) describeStatus(ctx context.Context, ids []string) (map[string]Status, error) {
	all := map[string]Status{}
	for some := range slices.Chunk(ids, mostNamed) {
		found, err := c.namedStatus(ctx, some)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	return all, nil
}

// namedStatus asks about instances by their IDs. One that EC2 does not know makes a request fail whole, so that the others are asked
// about without it: those of one half, then those of the other.
func (c *Catalog) namedStatus(ctx context.Context, ids []string) (map[string]Status, error) {
	found, err := c.listStatus(ctx, &ec2.DescribeInstanceStatusInput{InstanceIds: ids})
	api, said := errors.AsType[smithy.APIError](err)
	if err == nil || !said || !strings.HasPrefix(api.ErrorCode(), "InvalidInstanceID.") {
		return found, err
	}
	all := map[string]Status{}
	if len(ids) < 2 {
		return all, nil
	}
	for _, half := range [][]string{ids[:len(ids)/2], ids[len(ids)/2:]} {
		if found, err = c.namedStatus(ctx, half); err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	return all, nil
}

// listStatus asks page by page.
func (c *Catalog) listStatus(ctx context.Context, in *ec2.DescribeInstanceStatusInput) (map[string]Status, error) {
	in.IncludeAllInstances = new(true)
	all := map[string]Status{}
	for {
		answer, err := persist(ctx, func(ctx context.Context) (*ec2.DescribeInstanceStatusOutput, error) {
			return c.ec2.DescribeInstanceStatus(ctx, in)
		})
		if err != nil {
			return nil, err
		}
		for _, s := range answer.InstanceStatuses {
			all[aws.ToString(s.InstanceId)] = statusOf(s)
		}
		if in.NextToken = answer.NextToken; aws.ToString(in.NextToken) == "" {
			return all, nil
		}
	}
}

// statusOf turns EC2's description into ours.
func statusOf(s types.InstanceStatus) Status {
	var found Status
	for _, e := range s.Events {
		described := strings.ToLower(aws.ToString(e.Description))
		found.Planned = append(found.Planned, Planned{
			ID: aws.ToString(e.InstanceEventId), Code: string(e.Code), Description: aws.ToString(e.Description),
			NotBefore: aws.ToTime(e.NotBefore), NotAfter: aws.ToTime(e.NotAfter),
			Canceled:  strings.HasPrefix(described, "[canceled]") || strings.HasPrefix(described, "[cancelled]"),
			Completed: strings.HasPrefix(described, "[completed]"),
		})
	}
	for _, check := range []struct {
		name    string
		summary *types.InstanceStatusSummary
	}{{"system", s.SystemStatus}, {"instance", s.InstanceStatus}} {
		if check.summary == nil || string(check.summary.Status) != impaired || found.Impaired != "" {
			continue
		}
		found.Impaired = check.name
		for _, d := range check.summary.Details {
			if since := aws.ToTime(d.ImpairedSince); found.Since.IsZero() || !since.IsZero() && since.Before(found.Since) {
				found.Since = since
			}
		}
	}
	return found
}
