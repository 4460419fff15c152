package ec2

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nth-project/nth/pkg/event"
)

// Status is what EC2 has scheduled for an instance, and the result of its status checks.
type Status struct {
	// Planned are the scheduled events, including past ones, which EC2 lists for up to a week. Each has the ID and the times that EC2 gives it.
	Planned []event.Event
	// Impaired is the status check that fails: "system" or "instance"; "" if no check fails. If both fail, it is "system". Since is when
	// this check began to fail; zero if EC2 does not say.
	Impaired string
	Since    time.Time
}

// impaired is EC2's word for a failing status check.
const impaired = string(types.SummaryStatusImpaired)

// eventCodes are the codes of all events that EC2 schedules.
var eventCodes = []string{
	string(types.EventCodeInstanceReboot), string(types.EventCodeSystemReboot), string(types.EventCodeSystemMaintenance),
	string(types.EventCodeInstanceRetirement), string(types.EventCodeInstanceStop),
}

// Notable returns, by instance ID, the status of each instance of the region for which events are scheduled. If checks is true, it also
// returns the status of each instance whose status checks fail. The error wraps ErrRefused if IAM does not allow the request.
func (c *Catalog) Notable(ctx context.Context, checks bool) (map[string]Status, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	filters := []types.Filter{{Name: aws.String("event.code"), Values: eventCodes}}
	if checks { // Each filter has a request of its own: a request with both would return only instances for which both checks fail.
		for _, name := range []string{"instance-status.status", "system-status.status"} {
			filters = append(filters, types.Filter{Name: &name, Values: []string{impaired}})
		}
	}
	all := map[string]Status{}
	for _, filter := range filters {
		pages := ec2.NewDescribeInstanceStatusPaginator(c.ec2, &ec2.DescribeInstanceStatusInput{
			MaxResults: new(int32(maxPage)), Filters: []types.Filter{filter}, IncludeAllInstances: new(true), // also instances that do not run
		})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, explain(describeInstanceStatus, err)
			}
			for _, s := range page.InstanceStatuses {
				all[aws.ToString(s.InstanceId)] = convertStatus(s)
			}
		}
	}
	return all, nil
}

// convertStatus makes a Status of the SDK's description.
func convertStatus(s types.InstanceStatus) Status {
	var found Status
	for _, e := range s.Events {
		id, description := aws.ToString(e.InstanceEventId), aws.ToString(e.Description)
		if id == "" {
			continue // Without an ID, nth-queue could not recognize the event in EC2's next answer.
		}
		found.Planned = append(found.Planned, event.Event{
			ID: id, Kind: event.ScheduledMaintenance, Code: string(e.Code), State: event.StateIn(description), Description: description,
			Deadline: aws.ToTime(e.NotBefore), Until: aws.ToTime(e.NotAfter),
		})
	}
	for _, check := range []struct {
		name    string
		summary *types.InstanceStatusSummary
	}{{"system", s.SystemStatus}, {"instance", s.InstanceStatus}} {
		if check.summary == nil || string(check.summary.Status) != impaired {
			continue // The check does not fail.
		}
		found.Impaired = check.name
		for _, d := range check.summary.Details { // Since is the earliest time in them.
			since := aws.ToTime(d.ImpairedSince)
			earlier := found.Since.IsZero() || since.Before(found.Since)
			if !since.IsZero() && earlier {
				found.Since = since
			}
		}
		break // If both checks fail, "system" counts.
	}
	return found
}
