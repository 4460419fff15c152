package asg_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/asg/asgtest"
)

func TestTheServiceOfTheInstancesOrTheNamedRegionIsAsked(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ region, endpoint, want string }{
		{"", "", "autoscaling.eu-central-1.amazonaws.com:443"},
		{"us-east-1", "", "autoscaling.us-east-1.amazonaws.com:443"},
		{"cn-north-1", "", "autoscaling.cn-north-1.amazonaws.com.cn:443"},
		{"us-east-1", "https://vpce-1.example.com/", "vpce-1.example.com:443"},
	} {
		bubble(t, one(hook), func(r *rig) {
			r.opts.Region, r.opts.Endpoint = row.region, row.endpoint
			var mu sync.Mutex
			var dialed []string
			r.dial = func(_ context.Context, _, address string) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dialed = append(dialed, address)
				return nil, errors.New("there is no network")
			}
			r.run()
			r.announce(ending)
			if len(dialed) != 1 || dialed[0] != row.want {
				t.Errorf("dialed %q, want %s", dialed, row.want)
			}
			r.wantNews("trouble: calling autoscaling:DescribeAutoScalingInstances: there is no network; Auto Scaling is asked again")
		})
	}
}

func TestAMetadataServiceThatFailsIsAskedAgain(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		good := r.metadata
		r.metadata = nil
		r.terminate()
		r.mu.Lock()
		r.metadata = good
		r.mu.Unlock()
		r.pass(10 * time.Second)
		r.wantActions("drain beaten at 0s~1s")
		r.wantNews("trouble: asking the metadata service who this is:", found)
	})
}

// checkable is an Auto Scaling that has a group with the hook, and what a check needs to ask it.
func checkable(t *testing.T) (*asgtest.Server, asg.Options) {
	t.Helper()
	server := asgtest.NewServer()
	t.Cleanup(server.Close)
	server.AddGroup(group, hook)
	r := &rig{t: t, metadata: role("ASIAREHEARSALONLY000")}
	return server, asg.Options{Metadata: r.document, Endpoint: server.URL}
}

func TestACheckChangesNothing(t *testing.T) {
	t.Parallel()
	server, opts := checkable(t)
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c != (asg.Checkup{}) {
		t.Errorf("in no group: %+v", c)
	}
	server.AddInstance(group, instance)
	server.Terminate(instance)
	if c := asg.Check(t.Context(), opts, asg.Settings{}); !c.Ours || c.Found == "" || c.Err != nil || c.Missing != nil {
		t.Errorf("in a group: %+v", c)
	}
	if c := asg.Check(t.Context(), opts, asg.Settings{Hooks: []string{"other"}}); c.Ours || c.Found == "" || c.Err != nil {
		t.Errorf("where another hook is named: %+v", c)
	}
	if a := server.Actions(instance)[0]; len(a.Heartbeats) > 0 || a.Result != "" {
		t.Errorf("the hook is %+v", a)
	}
	server.Deny("DescribeAutoScalingInstances")
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c.Err == nil {
		t.Errorf("without a permission: %+v", c)
	}
}

func TestACheckTellsWhatHookRightsAreMissingAndWhatThatMeans(t *testing.T) {
	t.Parallel()
	server, opts := checkable(t)
	server.AddInstance(group, instance)
	server.Deny("RecordLifecycleActionHeartbeat", "CompleteLifecycleAction")
	const want = "the instance's role does not allow autoscaling:RecordLifecycleActionHeartbeat; the machine is held for one timeout of the hook only\n" +
		"the instance's role does not allow autoscaling:CompleteLifecycleAction; the hook is left to its timeout"
	if c := asg.Check(t.Context(), opts, asg.Settings{}); !c.Ours || c.Missing == nil || c.Missing.Error() != want {
		t.Errorf("without permissions: %+v", c)
	}
	if c := asg.Check(t.Context(), opts, asg.Settings{Hooks: []string{"other"}}); c.Missing != nil {
		t.Errorf("where no hook is ours: %+v", c)
	}
	server.Allow("RecordLifecycleActionHeartbeat")
	server.Fail(asgtest.Throttled("CompleteLifecycleAction", 0))
	if c := asg.Check(t.Context(), opts, asg.Settings{}); c.Missing == nil || !strings.Contains(c.Missing.Error(), "CompleteLifecycleAction: Throttling") {
		t.Errorf("where it cannot be tried: %+v", c)
	}
}

func TestARunEndsAtOnceAlsoInTheMidstOfARequest(t *testing.T) {
	t.Parallel()
	bubble(t, one(hook), func(r *rig) {
		r.aws.Fail(asgtest.Fault{})
		r.run()
		r.announce(ending)
		time.Sleep(time.Second)
		synctest.Wait()
		r.end() // which minds that it takes no time
		r.wantNews()
	})
}
