package reservation_test

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/internal/pipetest"
	"github.com/nth-project/nth/pkg/reservation"
)

const instance, reserved = "i-0a1b2c3d4e5f60718", "cr-0123456789abcdef0"

// rig is a source with an EC2 behind it, on a network and a clock of their own, and what it delivers.
type rig struct {
	t     *testing.T
	ec2   *ec2test.Service
	opts  reservation.Options
	start time.Time

	mu       sync.Mutex
	metadata map[string]string
	off      string
	looks    []time.Time
	events   []event.Event
	troubles []string
}

// bubble runs f with a source on an instance of a life cycle.
func bubble(t *testing.T, lifeCycle string, in ec2test.Reservation, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, ec2: &ec2test.Service{}, start: time.Now(), metadata: map[string]string{
			"instance-id": instance, "placement/region": "us-east-2", "iam/security-credentials/": "nodes",
			"iam/security-credentials/nodes": `{"Code": "Success", "AccessKeyId": "ASIA", "SecretAccessKey": "secret", "Token": "token", "Expiration": "2030-01-01T00:00:00Z"}`,
		}}
		in.ID = reserved
		r.ec2.Reserve(in)
		r.ec2.Add(ec2test.Instance{ID: instance, State: "running", Reservation: reserved})
		server := pipetest.Serve(r.ec2)
		defer server.Close()
		r.opts = reservation.Options{Endpoint: "http://ec2.test", Metadata: r.document, Dial: server.Dial, Off: func(why string) { r.off = why }}
		source := reservation.New(r.opts)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- source.Run(ctx, r) }()
		source.Bought(lifeCycle)
		synctest.Wait()
		f(r)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
}

func (r *rig) document(_ context.Context, path string) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, found := r.metadata[path]
	if !found {
		return nil, fs.ErrNotExist
	}
	return []byte(body), nil
}

// Snapshot implements event.Sink.
func (r *rig) Snapshot(s event.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Kind != event.ReservationEnd {
		r.t.Errorf("a snapshot of %s", s.Kind)
	}
	r.looks, r.events = append(r.looks, time.Now()), s.Events
}

// Trouble implements event.Sink.
func (r *rig) Trouble(_ event.Kind, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.troubles = append(r.troubles, err.Error())
}

// pass lets time pass.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// announced is what was delivered last, in a few words.
func (r *rig) announced() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.looks) == 0 {
		return "no look"
	}
	var all []string
	for _, ev := range r.events {
		text := strings.TrimPrefix(ev.ID, "reservation-end-") + " " + ev.Code
		if !ev.Deadline.IsZero() {
			text += fmt.Sprintf(" in %s", ev.Deadline.Sub(r.start))
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (r *rig) wantAnnounced(want string) {
	r.t.Helper()
	if got := r.announced(); got != want {
		r.t.Errorf("what is announced is %q, want %q", got, want)
	}
}

func TestTheEndIsAnnouncedOfAReservationThatTakesItsInstances(t *testing.T) {
	t.Parallel()
	const block, interruptible = "capacity-block", "interruptible-capacity-reservation"
	for name, row := range map[string]struct {
		lifeCycle string
		in        ec2test.Reservation
		ends      time.Duration
		want      string
	}{
		"a Capacity Block":                      {block, ec2test.Reservation{Block: true, InstanceType: "p5.48xlarge"}, 5 * time.Hour, reserved + " capacity-block in 4h30m0s"},
		"a Capacity Block of UltraServers":      {block, ec2test.Reservation{Block: true, InstanceType: "p6e-gb200.36xlarge"}, 5 * time.Hour, reserved + " capacity-block in 4h0m0s"},
		"one of Trainium":                       {block, ec2test.Reservation{Block: true, InstanceType: "trn2u.48xlarge"}, 5 * time.Hour, reserved + " capacity-block in 4h0m0s"},
		"of P6, which is not P6e":               {block, ec2test.Reservation{Block: true, InstanceType: "p6-b200.48xlarge"}, 5 * time.Hour, reserved + " capacity-block in 4h30m0s"},
		"an interruptible one":                  {interruptible, ec2test.Reservation{Interruptible: true}, 0, ""},
		"an interruptible one with an end":      {interruptible, ec2test.Reservation{Interruptible: true}, time.Hour, reserved + " interruptible in 1h0m0s"},
		"an interruptible one that is canceled": {interruptible, ec2test.Reservation{Interruptible: true, State: "cancelling"}, 0, reserved + " interruptible"},
		"one with an end that is canceled before it": {
			interruptible, ec2test.Reservation{Interruptible: true, State: "cancelling"}, 5 * time.Hour, reserved + " interruptible",
		},
		"another, whose instances run on": {block, ec2test.Reservation{}, time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := row.in
			if row.ends > 0 {
				in.End = bubbleStart.Add(row.ends)
			}
			bubble(t, row.lifeCycle, in, func(r *rig) { r.wantAnnounced(row.want) })
		})
	}
}

// bubbleStart is when every bubble of testing/synctest begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func inABlock(left time.Duration) ec2test.Reservation {
	return ec2test.Reservation{ID: reserved, Block: true, InstanceType: "p5.48xlarge", End: bubbleStart.Add(left)}
}

func TestAnEndThatIsMovedIsTheSameEventAtAnotherTime(t *testing.T) {
	t.Parallel()
	bubble(t, "capacity-block", inABlock(2*time.Hour), func(r *rig) {
		r.wantAnnounced(reserved + " capacity-block in 1h30m0s")
		r.ec2.Reserve(inABlock(26 * time.Hour))
		r.pass(6 * time.Minute)
		r.wantAnnounced(reserved + " capacity-block in 25h30m0s")
		if calls := len(r.ec2.Calls("DescribeInstances")); calls != 1 {
			t.Errorf("EC2 was asked %d times for what does not change", calls)
		}
	})
}

func TestNobodyIsAskedWhereNoReservationTakesTheInstance(t *testing.T) {
	t.Parallel()
	for _, lifeCycle := range []string{"on-demand", "spot", "scheduled", ""} {
		bubble(t, lifeCycle, inABlock(time.Hour), func(r *rig) {
			r.pass(time.Hour)
			r.wantAnnounced("")
			if calls := len(r.ec2.Calls("DescribeInstances")); calls > 0 || len(r.looks) != 1 {
				t.Errorf("on a %q instance EC2 was asked %d times, and %d snapshots were delivered", lifeCycle, calls, len(r.looks))
			}
			if !strings.Contains(r.off, lifeCycle) || r.off == "" {
				t.Errorf("on a %q instance it says that %q", lifeCycle, r.off)
			}
		})
	}
}

func TestARightThatIsMissingIsNamedAndUsedOnceItIsGiven(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"DescribeInstances", "DescribeCapacityReservations"} {
		bubble(t, "on-demand", inABlock(24*time.Hour), func(r *rig) {
			r.ec2.Deny(action)
			want := "the instance's role does not allow ec2:" + action
			if _, err := reservation.Check(r.t.Context(), r.opts); err == nil || err.Error() != want {
				t.Errorf("a check says %v, want %s", err, want)
			}
			source := reservation.New(r.opts)
			ctx, cancel := context.WithCancel(r.t.Context())
			defer cancel()
			r.looks = nil
			source.Bought("capacity-block")
			go func() { _ = source.Run(ctx, r) }()
			r.pass(time.Hour)
			r.wantAnnounced("no look")
			if n := len(r.troubles); n < 10 || n > 14 || r.troubles[0] != want || r.troubles[n-1] != want {
				t.Errorf("it says %q, want %q every five minutes", r.troubles, want)
			}
			r.ec2.Allow()
			r.pass(6 * time.Minute)
			r.wantAnnounced(reserved + " capacity-block in 23h30m0s")
			cancel()
			synctest.Wait()
		})
	}
}

func TestWhatFailsForAWhileIsAskedAgainInSeconds(t *testing.T) {
	t.Parallel()
	bubble(t, "on-demand", inABlock(24*time.Hour), func(r *rig) {
		r.ec2.Throttle(7) // The SDK asks three times.
		r.looks = nil
		source := reservation.New(r.opts)
		ctx, cancel := context.WithCancel(r.t.Context())
		source.Bought("capacity-block")
		go func() { _ = source.Run(ctx, r) }()
		r.pass(time.Minute)
		r.wantAnnounced(reserved + " capacity-block in 23h30m0s")
		if len(r.troubles) == 0 || r.troubles[0] != "calling ec2:DescribeInstances: RequestLimitExceeded: no" {
			t.Errorf("it says %q", r.troubles)
		}
		cancel()
		synctest.Wait()
	})
}

func TestAnInstanceWithoutARoleSaysSo(t *testing.T) {
	t.Parallel()
	bubble(t, "on-demand", inABlock(24*time.Hour), func(r *rig) {
		delete(r.metadata, "iam/security-credentials/")
		if _, err := reservation.Check(r.t.Context(), r.opts); err == nil || err.Error() != "the instance has no IAM role" {
			t.Errorf("a check says %v", err)
		}
	})
}

func TestAFleetDoesNotAskAllAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, "capacity-block", inABlock(48*time.Hour), func(r *rig) {
		r.pass(10 * time.Hour)
		pauses := map[time.Duration]bool{}
		for i, at := range r.looks[1:] {
			pause := at.Sub(r.looks[i])
			if pause < 270*time.Second || pause > 330*time.Second {
				t.Errorf("a look came %s after the one before", pause)
			}
			pauses[pause.Round(time.Second)] = true
		}
		if len(r.looks) < 100 || len(pauses) < 20 {
			t.Errorf("of %d pauses, %d differ", len(r.looks), len(pauses))
		}
	})
}
