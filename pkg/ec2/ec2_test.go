package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/internal/querytest"
	"github.com/nth-project/nth/pkg/role"
)

// catalog returns the catalog of a region without a network, so that requests take place on the clock of testing/synctest.
func catalog(region *ec2test.Service, tag string) *ec2.Catalog {
	credentials := role.Credentials(querytest.MetadataOf("i-1", "eu-central-1").Document)
	return ec2.New(ec2.Options{AWS: aws.Config{Region: "eu-central-1", HTTPClient: querytest.Client{Handler: region}, Credentials: credentials}, Tag: tag})
}

// bubble runs f with a region, on a clock of its own.
func bubble(t *testing.T, f func(t *testing.T, region *ec2test.Service)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, &ec2test.Service{}) })
}

func inGroup(group string) map[string]string {
	return map[string]string{"aws:autoscaling:groupName": group}
}

func TestLook_SaysWhatTagsSay(t *testing.T) {
	t.Parallel()
	launched := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
	const replaced = "its Auto Scaling group would replace the instance"
	cluster := map[string]string{"kubernetes.io/cluster/shop": "owned", "Name": "kubernetes.io/cluster/no", "kubernetes.io/cluster/": "owned"}
	for id, row := range map[string]struct {
		instance ec2test.Instance
		tag      string
		want     ec2.Instance
		known    bool
	}{
		"i-1": {ec2test.Instance{State: "running", Address: "10.0.0.1", Launched: launched, Tags: map[string]string{"managed": ""}}, "managed",
			ec2.Instance{State: "running", Address: "10.0.0.1", Launched: launched, Managed: true}, true},
		"i-2": {ec2test.Instance{State: "running", Tags: inGroup("workers")}, "managed", ec2.Instance{State: "running", Group: "workers", Stays: replaced}, true},
		"i-4": {ec2test.Instance{State: "terminated"}, "managed", ec2.Instance{State: "terminated"}, true},
		"i-5": {ec2test.Instance{State: "running", Tags: inGroup("others")}, "", ec2.Instance{State: "running", Group: "others", Stays: replaced, Managed: true}, true},
		"i-6": {ec2test.Instance{State: "running", Tags: cluster}, "", ec2.Instance{State: "running", Managed: true, Clusters: []string{"shop"}}, true},
		"i-7": {ec2test.Instance{State: "running", Lifecycle: "spot"}, "", ec2.Instance{State: "running", Managed: true, Stays: "the instance is a spot instance"}, true},
		"i-8": {ec2test.Instance{State: "running", RootDevice: "instance-store"}, "",
			ec2.Instance{State: "running", Managed: true, Stays: "the root device of the instance is an instance store"}, true},
		"": {tag: "managed"}, // It is unknown.
	} {
		bubble(t, func(t *testing.T, region *ec2test.Service) {
			if row.instance.ID, row.want.ID = id, id; row.known {
				region.Add(row.instance)
			}
			found, known, err := catalog(region, row.tag).Look(t.Context(), id)
			if got, want := fmt.Sprintf("%+v %t", found, known), fmt.Sprintf("%+v %t", row.want, row.known); got != want || err != nil {
				t.Errorf("%s is %s (%v), want %s", id, got, err, want)
			}
		})
	}
}

// EC2 does not answer, throttles, or is broken.
func TestLook_CopesWithWhatFails(t *testing.T) {
	t.Parallel()
	const asking = "asking EC2 about the instance i-1: "
	for name, row := range map[string]struct {
		fault querytest.Fault
		most  time.Duration
		why   string
		tried int // 0 if that does not matter
	}{
		"faults for a moment":   {throttled(2), 15 * time.Second, "", 3},
		"it throttles for good": {throttled(0), 15 * time.Second, asking + "calling ec2:DescribeInstances: RequestLimitExceeded: it is a fault", 0},
		"it is silent for good": {querytest.Fault{}, 15 * time.Second, asking + "calling ec2:DescribeInstances: no answer within 15s", 0},
		"what will not pass": {
			querytest.Fault{Status: http.StatusBadRequest, Code: "InvalidParameterValue"}, 0, asking + "calling ec2:DescribeInstances: InvalidParameterValue: it is a fault", 1,
		},
		"it may not be asked": {
			querytest.Fault{Status: http.StatusForbidden, Code: "UnauthorizedOperation"}, 0, asking + "IAM does not allow the request ec2:DescribeInstances", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, region *ec2test.Service) {
				region.Fail(row.fault)
				region.Add(ec2test.Instance{ID: "i-1", State: "running"})
				began := time.Now()
				_, known, err := catalog(region, "").Look(t.Context(), "i-1")
				if took, tried := time.Since(began), len(region.Calls("")); took > row.most+time.Second || row.tried > 0 && tried != row.tried {
					t.Errorf("it took %s and %d requests, want %s at most and %d", took, tried, row.most, row.tried)
				}
				if known != (row.why == "") || (err == nil) != known || err != nil && !strings.HasPrefix(err.Error(), row.why) {
					t.Errorf("it is known: %t, %v; want %q", known, err, row.why)
				}
				if refused := errors.Is(err, ec2.ErrRefused); refused != (name == "it may not be asked") {
					t.Errorf("it counts as refused: %t", refused)
				}
			})
		})
	}
}

// throttled is how EC2 throttles.
func throttled(times int) querytest.Fault {
	return querytest.Fault{Status: http.StatusServiceUnavailable, Code: "RequestLimitExceeded", Times: times}
}

func TestLook_ManyAreOneRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, region *ec2test.Service) {
		catalog := catalog(region, "managed")
		const many = 100
		for i := range many {
			region.Add(ec2test.Instance{ID: fmt.Sprintf("i-%d", i), State: "running", Tags: inGroup("workers")})
		}
		var all sync.WaitGroup
		for i := range many + 1 { // The last one is unknown.
			all.Go(func() {
				if _, known, err := catalog.Look(t.Context(), fmt.Sprintf("i-%d", i)); err != nil || known != (i < many) {
					t.Errorf("instance %d: %t, %v", i, known, err)
				}
			})
		}
		all.Wait()
		if asked := region.Asked(); len(asked) != 1 || len(asked[0]) != many+1 {
			t.Errorf("EC2 was asked %v", asked)
		}
	})
}

// One question by an address, a group or a reservation finds the instances on all pages, and none of others.
func TestCatalog_FindsInstancesByWhatTheyHave(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, region *ec2test.Service) {
		region.Page(1)
		region.Add(
			ec2test.Instance{ID: "i-1", State: "running", Address: "10.0.0.1", Tags: inGroup("workers"), Reservation: "cr-1"},
			ec2test.Instance{ID: "i-2", State: "running", Address: "10.0.0.1", Tags: inGroup("workers"), Reservation: "cr-1"},
			ec2test.Instance{ID: "i-3", State: "terminated", Reservation: "cr-1"}, ec2test.Instance{ID: "i-4", State: "running", Tags: inGroup("others")},
		)
		catalog := catalog(region, "")
		at := func(ctx context.Context, address string) (ids []string, err error) {
			found, err := catalog.AtAddress(ctx, address)
			for _, i := range found {
				ids = append(ids, i.ID)
			}
			return ids, err
		}
		for _, row := range []struct {
			find func(context.Context, string) ([]string, error)
			by   string
			want string
		}{
			{at, "10.0.0.1", "[i-1 i-2]"}, {at, "10.0.0.4", "[]"}, {catalog.InReservation, "cr-1", "[i-1 i-2]"}, {catalog.InReservation, "cr-2", "[]"},
		} {
			if found, err := row.find(t.Context(), row.by); fmt.Sprint(found) != row.want || err != nil {
				t.Errorf("by %s are %v (%v), want %s", row.by, found, err, row.want)
			}
		}
		for want, ids := range map[string][]string{"": {"i-3"}, "workers": {"i-3", "i-1"}} {
			if got := catalog.GroupOf(t.Context(), ids); got != want {
				t.Errorf("%v are in %q, want %q", ids, got, want)
			}
		}
	})
}

func TestRights_AreTriedWithoutAskingAboutAnInstance(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, region *ec2test.Service) {
		must, may := catalog(region, "managed").Rights()
		all := slices.Concat(must, may)
		for _, denied := range all {
			region.Allow()
			region.Deny(strings.TrimPrefix(denied.Name, "ec2:"))
			for _, right := range all {
				if allowed, err := right.Allowed(t.Context()); allowed != (right.Name != denied.Name) || err != nil {
					t.Errorf("without %s, %s is allowed: %t (%v)", denied.Name, right.Name, allowed, err)
				}
			}
		}
		if asked := region.Asked(); len(asked) > 0 {
			t.Errorf("EC2 was asked about %v", asked)
		}
	})
}

// A request whose answer is lost may have been carried out. One that EC2 has throttled was not.
func TestChange_IsRepeatedOnlyIfItWasThrottled(t *testing.T) {
	t.Parallel()
	type row struct {
		request ec2.Request
		try     bool
		denied  string
		fault   querytest.Fault
		state   string // after it
		tried   int
		why     string
	}
	for name, row := range map[string]row{
		"a stop":               {request: ec2.Stop, state: "stopped", tried: 1},
		"a start":              {request: ec2.Start, state: "running", tried: 1},
		"a termination":        {request: ec2.Terminate, state: "terminated", tried: 1},
		"a reboot":             {request: ec2.Reboot, state: "running", tried: 1},
		"an unknown one":       {request: "ec2:Hibernate", state: "running", why: "InvalidAction"},
		"a try":                {request: ec2.Stop, try: true, state: "running", tried: 1},
		"a try that IAM fails": {request: ec2.Stop, try: true, denied: "StopInstances", state: "running", tried: 1, why: "IAM does not allow the request ec2:StopInstances"},
		"it is throttled":      {request: ec2.Stop, fault: throttled(1), state: "stopped", tried: 2},
		"EC2 is broken": {
			request: ec2.Reboot, fault: querytest.Fault{Status: 500, Code: "InternalError", Times: 1}, state: "running", tried: 1, why: "InternalError",
		},
		"no answer comes": {request: ec2.Reboot, fault: querytest.Fault{Times: 1}, state: "running", tried: 1, why: "no answer within 15s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, region *ec2test.Service) {
				region.Add(ec2test.Instance{ID: "i-1", State: "running"})
				if row.fault.Times > 0 {
					region.Fail(row.fault)
				}
				if row.denied != "" {
					region.Deny(row.denied)
				}
				catalog := catalog(region, "")
				err := catalog.Change(t.Context(), row.request, "i-1", row.try)
				tried := len(region.Calls(""))
				found, _, _ := catalog.Look(t.Context(), "i-1")
				if tried != row.tried || found.State != row.state {
					t.Errorf("after %d requests it is %s, want %s after %d", tried, found.State, row.state, row.tried)
				}
				if (err == nil) != (row.why == "") || err != nil && !strings.Contains(err.Error(), row.why) || errors.Is(err, ec2.ErrRefused) != (row.denied != "") {
					t.Errorf("it says %v, want %q", err, row.why)
				}
				if unanswered := name == "no answer comes" || name == "EC2 is broken"; errors.Is(err, ec2.ErrUnanswered) != unanswered {
					t.Errorf("it says %v; the answer is missing: %t", err, unanswered)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// One event is to come, one was called off, and one has happened. A stopped instance has them, too.
func TestNotable_IsWhatIsScheduledOrFailsItsChecks(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, region *ec2test.Service) {
		at := time.Now().UTC().Truncate(time.Second)
		for n := range 7 {
			region.Add(ec2test.Instance{ID: fmt.Sprintf("i-%d", n), State: map[bool]string{true: "stopped", false: "running"}[n == 1]})
		}
		want := []event.Event{
			{ID: "instance-event-1", Code: "system-reboot", State: event.Pending, Description: "scheduled reboot", Deadline: at, Until: at.Add(time.Hour)},
			{ID: "instance-event-2", Code: "instance-stop", State: event.Canceled, Description: "[Canceled] The instance is running on degraded hardware", Deadline: at},
			{ID: "instance-event-3", Code: "system-maintenance", State: event.Completed, Description: "[Completed] power maintenance"},
		}
		var planned []ec2test.Planned
		for i, e := range want {
			want[i].Kind = event.ScheduledMaintenance
			planned = append(planned, ec2test.Planned{ID: e.ID, Code: e.Code, Description: e.Description, NotBefore: e.Deadline, NotAfter: e.Until})
		}
		for _, id := range []string{"i-0", "i-1", "i-2"} {
			region.Schedule(id, planned...)
		}
		region.Page(2)
		region.Impair("i-0", at.Add(-time.Hour), time.Time{})
		region.Impair("i-4", time.Time{}, at.Add(-time.Minute))
		region.Impair("i-5", at.Add(-time.Hour), at.Add(-time.Minute))
		for checks, notable := range map[bool]map[string]string{
			false: {"i-0": "3 instance", "i-1": "3 ", "i-2": "3 "},
			true:  {"i-0": "3 instance", "i-1": "3 ", "i-2": "3 ", "i-4": "0 system", "i-5": "0 system"},
		} {
			found, err := catalog(region, "").Notable(t.Context(), checks)
			got := map[string]string{}
			for id, s := range found {
				got[id] = fmt.Sprint(len(s.Planned), " ", s.Impaired)
			}
			if fmt.Sprint(got) != fmt.Sprint(notable) || err != nil {
				t.Errorf("with checks %t, it is %v (%v), want %v", checks, got, err, notable)
			}
			if got := found["i-1"].Planned; !slices.Equal(got, want) {
				t.Errorf("scheduled are %+v, want %+v", got, want)
			}
			if since := found["i-5"].Since; checks && !since.Equal(at.Add(-time.Minute)) {
				t.Errorf("the system of i-5 fails since %s, want a minute", since)
			}
		}
		region.Deny("DescribeInstanceStatus")
		if _, err := catalog(region, "").Notable(t.Context(), true); !errors.Is(err, ec2.ErrRefused) {
			t.Errorf("refused, it says %v", err)
		}
	})
}
