package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/fleet"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func in(d time.Duration) time.Time { return noon.Add(d) }

func TestWhoMayBegin(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		limits fleet.Limits
		places []fleet.Place
		busy   map[string]int
		want   string
	}{
		"without limits all may": {
			places: []fleet.Place{{Node: "a", Since: in(2)}, {Node: "b", Since: in(1)}, {Node: "c", Since: in(3)}},
			want:   "b a c",
		},
		"spot goes before deadlines, and deadlines before the rest": {
			places: []fleet.Place{
				{Node: "first", Since: in(1)}, {Node: "late", Since: in(2), Deadline: in(time.Hour)},
				{Node: "soon", Since: in(3), Deadline: in(time.Minute)}, {Node: "spot", Since: in(4), Spot: true, Deadline: in(2 * time.Minute)},
			},
			want: "spot soon late first",
		},
		"with a limit some wait": {
			limits: fleet.Limits{Draining: 2},
			places: []fleet.Place{{Node: "a", Since: in(1)}, {Node: "b", Since: in(2)}, {Node: "c", Since: in(3)}},
			want:   "a b",
		},
		"those that are being drained count": {
			limits: fleet.Limits{Draining: 2},
			places: []fleet.Place{{Node: "a", Since: in(1)}, {Node: "b", Since: in(2)}},
			busy:   map[string]int{"z": 1}, want: "a",
		},
		"spot waits for nobody, and counts": {
			limits: fleet.Limits{Draining: 1},
			places: []fleet.Place{{Node: "a", Since: in(1)}, {Node: "spot", Since: in(2), Spot: true}, {Node: "spot too", Since: in(3), Spot: true}},
			busy:   map[string]int{"z": 7}, want: "spot spot too",
		},
		"a full group holds no other one up": {
			limits: fleet.Limits{Group: 1},
			places: []fleet.Place{{Node: "a1", Group: "a", Since: in(1)}, {Node: "a2", Group: "a", Since: in(2)}, {Node: "b1", Group: "b", Since: in(3)}},
			want:   "a1 b1",
		},
		"both limits hold": {
			limits: fleet.Limits{Draining: 3, Group: 2},
			places: []fleet.Place{
				{Node: "a1", Group: "a", Since: in(1)}, {Node: "a2", Group: "a", Since: in(2)}, {Node: "a3", Group: "a", Since: in(3)},
				{Node: "b1", Group: "b", Since: in(4)}, {Node: "b2", Group: "b", Since: in(5)},
			},
			want: "a1 a2 b1",
		},
		"who is in the line gets the better of two places": {
			limits: fleet.Limits{Draining: 1},
			places: []fleet.Place{{Node: "a", Since: in(1)}, {Node: "b", Since: in(2)}, {Node: "b", Since: in(3), Deadline: in(time.Minute)}},
			want:   "b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := fleet.NewQueue(row.limits)
			for _, p := range row.places {
				queue.Join(p)
			}
			busy := row.busy
			if busy == nil {
				busy = map[string]int{}
			}
			if got := strings.Join(queue.Next(busy), " "); got != row.want {
				t.Errorf("%q may begin, want %q", got, row.want)
			}
		})
	}
}

func TestWhoWaitedBeginsWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	queue := fleet.NewQueue(fleet.Limits{Draining: 1})
	queue.Join(fleet.Place{Node: "a", Since: in(1)})
	queue.Join(fleet.Place{Node: "b", Since: in(2)})
	for _, want := range []string{"a", "b", ""} {
		if got := strings.Join(queue.Next(map[string]int{}), " "); got != want {
			t.Errorf("%q may begin, want %q", got, want)
		}
	}
}

func TestOnlyProviderIDsOfEC2NameAnInstance(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"aws:///eu-central-1a/i-0123456789abcdef0": "i-0123456789abcdef0",
		"aws://i-0123456789abcdef0":                "i-0123456789abcdef0",
		"aws:///eu-central-1a/fargate-ip-10-0-0-1": "",
		"gce://project/zone/i-0123456789abcdef0":   "",
		"":                                         "",
	} {
		if got := fleet.InstanceOf(id); got != want {
			t.Errorf("%q names %q, want %q", id, got, want)
		}
	}
}

func TestANodeOfAnotherKindOfMachineHidesNoInstance(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"aws:///eu-central-1a/i-0123456789abcdef0":                                                   false,
		"aws:///eu-central-1a/4f1dcb3bd5-0a1b2c3d/fargate-ip-10-0-0-1.eu-central-1.compute.internal": false,
		"eks-hybrid:///eu-central-1/cluster/mi-0123456789abcdef0":                                    false,
		"gce://project/zone/name":                                                                    false,
		"k3s://ip-10-0-0-1":                                                                          true,
		"rke2://ip-10-0-0-1":                                                                         true,
		"":                                                                                           true,
	} {
		if got := fleet.Silent(id); got != want {
			t.Errorf("a node with the provider ID %q may be of any instance: %t, want %t", id, got, want)
		}
	}
}

func TestWhatFailsAgainAndAgainIsLeftAloneLonger(t *testing.T) {
	t.Parallel()
	for receives, want := range map[int]time.Duration{0: 2 * time.Second, 1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second, 6: time.Minute, 999: time.Minute} {
		if got := fleet.RetryPause(receives); got != want {
			t.Errorf("after %d receives it is %s, want %s", receives, got, want)
		}
	}
}
