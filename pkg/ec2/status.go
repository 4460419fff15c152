package ec2

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nth-project/nth/pkg/event"
)

// Status is what EC2 has scheduled for an instance, and the result of its status checks.
type Status struct {
	// Planned are its scheduled events, including past ones, which EC2 lists for up to a week. They have EC2's IDs and times.
	Planned []event.Event
	// Impaired is the status check that fails: "system", "instance", or "" if none does. If both fail, it is "system". Since is when
	// the check began to fail; zero if EC2 does not say.
	Impaired string
	Since    time.Time
}

// impaired is EC2's word for a failing status check.
const impaired = string(types.SummaryStatusImpaired)

// eventCodes are the codes of events that EC2 schedules.
var eventCodes = []string{
	string(types.EventCodeInstanceReboot), string(types.EventCodeSystemReboot), string(types.EventCodeSystemMaintenance),
	string(types.EventCodeInstanceRetirement), string(types.EventCodeInstanceStop),
}

// Notable returns the statuses of all instances of the region for which events are scheduled, by their IDs. With checks, it also
// returns those of instances whose status checks fail. The error is ErrRefused if IAM does not allow the request.
func (c *Catalog) Notable(ctx context.Context, checks bool) (map[string]Status, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	filters := []types.Filter{{Name: aws.String("event.code"), Values: eventCodes}}
	if checks { // These are two requests: one with both filters would return only instances for which both checks fail.
		for _, name := range []string{"instance-status.status", "system-status.status"} {
			filters = append(filters, types.Filter{Name: &name, Values: []string{impaired}})
		}
	}
	all := map[string]Status{}
	for _, filter := range filters {
		pages := ec2.NewDescribeInstanceStatusPaginator(c.ec2, &ec2.DescribeInstanceStatusInput{
			MaxResults: new(int32(maxPage)), Filters: []types.Filter{filter}, IncludeAllInstances: new(true), // also those that do not run
		})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, fmt.Errorf("asking EC2 for scheduled events and failed status checks: %w", explain(describeInstanceStatus, err))
			}
			for _, s := range page.InstanceStatuses {
				all[aws.ToString(s.InstanceId)] = convertStatus(s)
			}
		}
	}
	return all, nil
}

// convertStatus returns what this package needs of EC2's description of a status.
func convertStatus(s types.InstanceStatus) Status {
	var found Status
	for _, e := range s.Events {
		id, description := aws.ToString(e.InstanceEventId), aws.ToString(e.Description)
		if id == "" {
			continue // It could not be recognized when EC2 lists it again.
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
		if check.summary == nil || string(check.summary.Status) != impaired || found.Impaired != "" {
			continue // The check does not fail, or "system" fails as well.
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
