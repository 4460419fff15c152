package ec2_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/internal/querytest"
)

// scheduled are events of an instance: one to come, one that was called off, and one that has happened.
func scheduled(at time.Time) []ec2test.Planned {
	return []ec2test.Planned{
		{ID: "instance-event-1", Code: "system-reboot", Description: "scheduled reboot", NotBefore: at, NotAfter: at.Add(time.Hour)},
		{ID: "instance-event-2", Code: "instance-stop", Description: "[Canceled] The instance is running on degraded hardware", NotBefore: at},
		{ID: "instance-event-3", Code: "system-maintenance", Description: "[Completed] power maintenance"},
	}
}

func TestNotable_SaysWhatIsScheduled(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *region) {
		at := time.Now().UTC().Truncate(time.Second).Add(24 * time.Hour)
		w.ec2.Add(ec2test.Instance{ID: "i-1", State: "stopped"}, ec2test.Instance{ID: "i-2", State: "running"})
		w.ec2.Schedule("i-1", scheduled(at)...)
		all, err := w.catalog("").Notable(t.Context(), false)
		found := all["i-1"]
		want := []event.Event{
			{ID: "instance-event-1", Code: "system-reboot", State: event.Pending, Description: "scheduled reboot", Deadline: at, Until: at.Add(time.Hour)},
			{ID: "instance-event-2", Code: "instance-stop", State: event.Canceled, Description: "[Canceled] The instance is running on degraded hardware", Deadline: at},
			{ID: "instance-event-3", Code: "system-maintenance", State: event.Completed, Description: "[Completed] power maintenance"},
		}
		for i := range want {
			want[i].Kind = event.ScheduledMaintenance
		}
		if err != nil || len(all) != 1 || !slices.Equal(found.Planned, want) || found.Impaired != "" {
			t.Errorf("the statuses are %+v (%v), want %+v", all, err, want)
		}
	})
}

func TestNotable_IsWhatIsScheduledOrFailsItsChecks(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *region) {
		at := time.Now().UTC().Truncate(time.Second)
		for n := range 7 {
			id := fmt.Sprintf("i-%d", n)
			w.ec2.Add(ec2test.Instance{ID: id, State: "running"})
			if n < 3 {
				w.ec2.Schedule(id, scheduled(at)...)
			}
		}
		w.ec2.Page(2)
		w.ec2.Impair("i-0", at.Add(-time.Hour), time.Time{})
		w.ec2.Impair("i-4", time.Time{}, at.Add(-time.Minute))
		w.ec2.Impair("i-5", at.Add(-time.Hour), at.Add(-time.Minute))
		for checks, want := range map[bool]map[string]string{
			false: {"i-0": "3 instance", "i-1": "3 ", "i-2": "3 "},
			true:  {"i-0": "3 instance", "i-1": "3 ", "i-2": "3 ", "i-4": "0 system", "i-5": "0 system"},
		} {
			found, err := w.catalog("").Notable(t.Context(), checks)
			got := map[string]string{}
			for id, s := range found {
				got[id] = fmt.Sprint(len(s.Planned), " ", s.Impaired)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || err != nil {
				t.Errorf("with checks %t, it is %v (%v), want %v", checks, got, err, want)
			}
			if since := found["i-5"].Since; checks && !since.Equal(at.Add(-time.Minute)) {
				t.Errorf("the system of i-5 fails since %s, want a minute", since)
			}
		}
	})
}

func TestNotable_ARefusalIsKnownAsOne(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, w *region) {
		w.ec2.Deny("DescribeInstanceStatus")
		if _, err := w.catalog("").Notable(t.Context(), true); !errors.Is(err, ec2.ErrRefused) {
			t.Errorf("it says %v", err)
		}
		w.ec2.Allow()
		w.ec2.Fail(querytest.Fault{Status: 503, Code: "RequestLimitExceeded"})
		if _, err := w.catalog("").Notable(t.Context(), true); err == nil || errors.Is(err, ec2.ErrRefused) {
			t.Errorf("where it is throttled, it says %v", err)
		}
	})
}
