package targets_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/internal/pipetest"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/targets"
	"github.com/nth-project/nth/pkg/targets/elbtest"
	"github.com/nth-project/nth/pkg/wait"
)

const (
	instance = "i-0a1b2c3d4e5f60718"
	another  = "i-0f0f0f0f0f0f0f0f0"
)

// rig is a machine, and Elastic Load Balancing, on a network and a clock of their own.
type rig struct {
	t        *testing.T
	elb      *elbtest.Service
	metadata map[string]string
	groups   []string
	server   *pipetest.Server
	start    time.Time

	mu      sync.Mutex
	reports []string
	// takes is how long each answer takes. asking are the requests under way, and most how many there have been at once.
	takes        time.Duration
	asking, most int
}

// ServeHTTP lets Elastic Load Balancing take its time.
func (r *rig) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.asking++
	r.most = max(r.most, r.asking)
	takes := r.takes
	r.mu.Unlock()
	time.Sleep(takes)
	r.elb.ServeHTTP(w, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking--
}

// bubble runs f with a rig.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, elb: elbtest.New(), start: time.Now(), metadata: map[string]string{
			"instance-id": instance, "placement/region": "eu-central-1", "mac": "0a:1b", "network/interfaces/macs/0a:1b/vpc-id": elbtest.VPC,
			"iam/security-credentials/": "nodes",
			"iam/security-credentials/nodes": `{"Code": "Success", "AccessKeyId": "ASIAREHEARSALONLY000", "SecretAccessKey": "secret", "Token": "token",
				"Expiration": "2030-01-01T00:00:00Z"}`,
		}}
		r.server = pipetest.Serve(r)
		defer r.server.Close()
		f(r)
	})
}

// group adds a group to those that are asked about.
func (r *rig) group(name string, g elbtest.Group) string {
	arn := r.elb.AddGroup(name, g)
	r.groups = append(r.groups, arn)
	return arn
}

func (r *rig) document(_ context.Context, path string) ([]byte, error) {
	body, found := r.metadata[path]
	if !found {
		return nil, fs.ErrNotExist
	}
	return []byte(body), nil
}

func (r *rig) targets() *targets.Targets {
	account := aws.Config{
		Region: "eu-central-1", BaseEndpoint: aws.String("http://elb.test"), Credentials: role.Credentials(r.document),
		HTTPClient: role.Unhurried(&http.Client{Transport: &http.Transport{DialContext: r.server.Dial}}),
	}
	return targets.New(targets.Options{
		Groups: r.groups, Metadata: r.document, AWS: func(context.Context) (aws.Config, error) { return account, nil },
	})
}

// out waits, and returns how long that took and what came of it.
func (r *rig) out(labeled bool, addresses ...string) (time.Duration, error) {
	began := time.Now()
	err := r.targets().Wait(r.t.Context(), wait.Node{Labeled: labeled, Addresses: addresses}, func(left string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reports = append(r.reports, left)
	})
	return time.Since(began), err
}

// askedAbout is how often a group was asked about.
func (r *rig) askedAbout(arn string) int {
	asked := 0
	for _, c := range r.elb.Calls("DescribeTargetHealth") {
		if c.Values.Get("TargetGroupArn") == arn {
			asked++
		}
	}
	return asked
}

// after has something happen later.
func (r *rig) after(d time.Duration, do func()) {
	go func() { time.Sleep(d); do() }()
}

func (r *rig) wantReports(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.reports, want) {
		r.t.Errorf("reported\n\t%s\nwant\n\t%s", strings.Join(r.reports, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// errorOrNothing is the text of an error; empty if there is none.
func errorOrNothing(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// wantWithin fails unless something took that long, or less than a pause more.
func (r *rig) wantWithin(took, want time.Duration) {
	r.t.Helper()
	if took < want || took > want+5*time.Second {
		r.t.Errorf("it took %s, want %s and no more than one look", took, want)
	}
}

func TestWait_LastsUntilTheMachineHasDrained(t *testing.T) {
	for _, delay := range []time.Duration{0, 6 * time.Second, 180 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			bubble(t, func(r *rig) {
				web, api := r.group("web", elbtest.Group{Delay: delay}), r.group("api", elbtest.Group{})
				r.elb.Register(web, instance, 30080)
				r.elb.Register(web, instance, 30443)
				r.elb.Register(web, another, 30080)
				r.elb.Register(api, another, 30080)
				const react = 7 * time.Second
				r.after(react, func() { r.elb.Deregister(instance) })
				took, err := r.out(true)
				if err != nil {
					t.Error(err)
				}
				r.wantWithin(took, react+delay)
				want := []string{"2 targets are still healthy in tg/web", "2 targets are still draining in tg/web"}
				if delay == 0 {
					want = want[:1]
				}
				r.wantReports(want...)
				if asked := len(r.elb.Calls("DescribeTargetHealth")); asked > 2+int(took/(2*time.Second))+1 {
					t.Errorf("%d requests in %s", asked, took)
				}
			})
		})
	}
}

func TestWait_EndsForATargetThatGetsNothing(t *testing.T) {
	for state, out := range map[string]bool{
		"initial": false, "healthy": false, "unhealthy": false, "draining": false, "unhealthy.draining": false, "unavailable": false, "unused": true,
	} {
		t.Run(state, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.elb.Register(r.group("web", elbtest.Group{}), instance, 30080)
				r.elb.SetState(instance, state)
				r.after(20*time.Second, func() { r.elb.Deregister(instance) })
				took, err := r.out(true)
				if err != nil || (took == 0) != out {
					t.Errorf("it took %s: %v", took, err)
				}
			})
		})
	}
}

// A group whose targets are addresses says nothing of the machine. Its pods are waited for once they have gone.
func TestWait_FindsPodsByTheirAddresses(t *testing.T) {
	bubble(t, func(r *rig) {
		pods := r.group("pods", elbtest.Group{Type: "ip", Delay: 30 * time.Second})
		r.elb.Register(pods, "10.0.0.7", 8080)
		r.elb.Register(pods, "2001:db8:0:0:0:0:0:7", 8080)
		r.elb.Register(pods, "10.0.0.9", 8080)
		if took, err := r.out(true); took > 0 || err != nil {
			t.Errorf("before the pods have gone, it took %s: %v", took, err)
		}
		r.after(time.Second, func() { r.elb.Deregister("10.0.0.7"); r.elb.Deregister("2001:db8:0:0:0:0:0:7") })
		took, err := r.out(false, "10.0.0.7", "2001:db8::7", "no address")
		if err != nil {
			t.Error(err)
		}
		r.wantWithin(took, 31*time.Second)
		r.wantReports("2 targets are still healthy in tg/pods", "2 targets are still draining in tg/pods")
	})
}

func TestWait_EndsWhereNobodyDeregisters(t *testing.T) {
	for name, test := range map[string]struct {
		labeled bool
		want    time.Duration
		why     string
	}{
		"labeled":     {true, time.Minute, "1 target is still healthy in tg/web, and no controller has begun to deregister it within 1m0s"},
		"not labeled": {false, 0, "1 target is still healthy in tg/web, and the node is not labeled for anybody to take it out"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.elb.Register(r.group("web", elbtest.Group{}), instance, 30080)
				took, err := r.out(test.labeled)
				if err == nil || err.Error() != test.why {
					t.Errorf("the reason is %v, want %s", err, test.why)
				}
				r.wantWithin(took, test.want)
			})
		})
	}
}

func TestWait_EndsAtOnceWhereNothingIsToBeLearned(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(r *rig)
		why     string
	}{
		"the health": {func(r *rig) { r.elb.Deny("DescribeTargetHealth") },
			"the instance's role does not allow elasticloadbalancing:DescribeTargetHealth"},
		"the groups": {func(r *rig) { r.groups = []string{targets.All}; r.elb.Deny("DescribeTargetGroups") },
			"the instance's role does not allow elasticloadbalancing:DescribeTargetGroups"},
		"too many groups": {func(r *rig) {
			for n := range 100 {
				r.elb.AddGroup(fmt.Sprintf("other-%d", n), elbtest.Group{})
			}
			r.groups = []string{targets.All}
		}, "there are 101 target groups in the VPC, too many to look at: name those of this node in load_balancers.target_groups"},
		"nothing: the machine is no target": {func(r *rig) {
			r.elb.RemoveGroup(r.groups[0])
			r.elb.Register(r.group("other", elbtest.Group{}), another, 30080)
		}, ""},
		"there is no role": {func(r *rig) { delete(r.metadata, "iam/security-credentials/") }, "the instance has no IAM role"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.elb.Register(r.group("web", elbtest.Group{}), instance, 30080)
				test.prepare(r)
				took, err := r.out(true)
				if took > 0 || test.why != errorOrNothing(err) {
					t.Errorf("after %s, the reason is %v, want %s", took, err, test.why)
				}
			})
		})
	}
}

func TestWait_ContinuesForOthersThanARefusedGroup(t *testing.T) {
	bubble(t, func(r *rig) {
		secret, web := r.group("secret", elbtest.Group{}), r.group("web", elbtest.Group{Delay: 20 * time.Second})
		r.elb.Deny("DescribeTargetHealth " + secret)
		r.elb.Register(web, instance, 30080)
		r.elb.Deregister(instance)
		took, err := r.out(true)
		if err == nil || !strings.Contains(err.Error(), "does not allow") {
			t.Errorf("the reason is %v", err)
		}
		r.wantWithin(took, 20*time.Second)
		if asked := r.askedAbout(secret); asked != 1 {
			t.Errorf("the group that is refused was asked about %d times", asked)
		}
	})
}

// One look at all of them takes longer than one answer may.
func TestWait_AsksAboutAFewGroupsAtOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.takes = 150 * time.Millisecond
		for n := range 30 {
			r.elb.Register(r.group(fmt.Sprintf("web-%d", n), elbtest.Group{Delay: 20 * time.Second}), instance, 30080)
		}
		r.elb.Deregister(instance)
		if took, err := r.out(true); err != nil || took < 20*time.Second || took > 26*time.Second { // one look takes 600 ms
			t.Errorf("it took %s: %v", took, err)
		}
		if r.most < 2 || r.most > 8 {
			t.Errorf("%d were asked about at once", r.most)
		}
		found, err := r.targets().Check(r.t.Context())
		if err != nil || len(found) != 30 || slices.ContainsFunc(found, func(f targets.Found) bool { return f.Err != nil }) {
			t.Errorf("a check finds %+v: %v", found, err)
		}
	})
}

func TestWait_ContinuesForOthersThanAFailedGroup(t *testing.T) {
	for name, test := range map[string]struct {
		fault  elbtest.Fault
		why    string
		limit  int // how often it is asked about at most
		inTime bool
	}{
		"silent":     {elbtest.Silent(), "calling elasticloadbalancing:DescribeTargetHealth: no answer within 4s", 3, false},
		"broken":     {elbtest.Fault{Status: 500, Code: "InternalFailure"}, "calling elasticloadbalancing:DescribeTargetHealth: InternalFailure: it is a fault", 12, false},
		"for a time": {elbtest.Fault{Status: 500, Code: "InternalFailure", Times: 2}, "", 40, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				bad, web := r.group("bad", elbtest.Group{Delay: 60 * time.Second}), r.group("web", elbtest.Group{Delay: 60 * time.Second})
				r.elb.Register(web, instance, 30080)
				r.elb.Register(bad, instance, 30080)
				r.elb.Deregister(instance)
				test.fault.About = bad
				r.elb.Fail(test.fault)
				took, err := r.out(true)
				switch {
				case test.inTime && err != nil, !test.inTime && (err == nil || err.Error() != "tg/bad: "+test.why):
					t.Errorf("the reason is %v", err)
				}
				r.wantWithin(took, 60*time.Second)
				if asked := r.askedAbout(bad); asked > test.limit {
					t.Errorf("it was asked about %d times", asked)
				}
				if found, err := r.targets().Check(r.t.Context()); err != nil || len(found) != 2 || found[1].Err != nil {
					t.Errorf("a check finds %+v: %v", found, err)
				}
			})
		})
	}
}

// What was seen last of a group stands for a while, and then it holds nobody. An Auto Scaling group deregisters its instances by itself,
// without a label.
func TestWait_GivesUpAGroupThatFailsLater(t *testing.T) {
	bubble(t, func(r *rig) {
		bad, web := r.group("bad", elbtest.Group{Delay: time.Hour}), r.group("web", elbtest.Group{Delay: 2 * time.Minute})
		r.elb.Register(web, instance, 30080)
		r.elb.Register(bad, instance, 30080)
		r.elb.Deregister(instance)
		r.after(20*time.Second, func() { r.elb.Fail(elbtest.Fault{About: bad, Status: 500, Code: "InternalFailure"}) })
		took, err := r.out(false)
		if err == nil || !strings.HasPrefix(err.Error(), "tg/bad: ") {
			t.Errorf("the reason is %v", err)
		}
		r.wantWithin(took, 2*time.Minute)
		r.wantReports("1 target is still draining in tg/bad, 1 target is still draining in tg/web", "1 target is still draining in tg/web")
	})
}

// Many groups are not waited for in turn where none is answered, or asked about each where the service throttles.
func TestWait_GivesUpAServiceThatDoesNotAnswer(t *testing.T) {
	const calling = "calling elasticloadbalancing:DescribeTargetHealth: "
	for name, test := range map[string]struct {
		groups int
		fault  elbtest.Fault
		want   time.Duration
		why    string
	}{
		"silent":          {1, elbtest.Silent(), 5 * time.Second, "tg/web-0: " + calling + "no answer within 4s"},
		"broken":          {1, elbtest.Fault{Status: 500, Code: "InternalFailure"}, 5 * time.Second, "tg/web-0: " + calling + "InternalFailure: it is a fault"},
		"throttled":       {1, elbtest.Throttled(0), time.Minute, "tg/web-0: " + calling + "too much is asked"},
		"silent, many":    {60, elbtest.Silent(), 5 * time.Second, "tg/web-0 and 59 more: " + calling + "no answer within 4s"},
		"throttled, many": {60, elbtest.Throttled(0), time.Minute, "tg/web-0 and 59 more: " + calling + "too much is asked"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				for n := range test.groups {
					r.elb.Register(r.group(fmt.Sprintf("web-%d", n), elbtest.Group{}), instance, 30080)
				}
				r.elb.Fail(test.fault)
				took, err := r.out(true)
				if err == nil || err.Error() != test.why {
					t.Errorf("the reason is %v, want %s", err, test.why)
				}
				if took < test.want || took > test.want+20*time.Second {
					t.Errorf("it took %s, want about %s", took, test.want)
				}
				if asked := len(r.elb.Calls("")); asked > 130 {
					t.Errorf("it was asked %d times", asked)
				}
			})
		})
	}
}

func TestWait_SurvivesAShortOutage(t *testing.T) {
	for name, fault := range map[string]elbtest.Fault{"silent": elbtest.Silent(), "throttled": elbtest.Throttled(0)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.elb.Register(r.group("web", elbtest.Group{Delay: 40 * time.Second}), instance, 30080)
				r.elb.Deregister(instance)
				r.after(10*time.Second, func() { r.elb.Fail(fault) })
				r.after(30*time.Second, r.elb.Lift)
				took, err := r.out(true)
				if err != nil || took < 40*time.Second {
					t.Errorf("it took %s: %v", took, err)
				}
				r.wantReports("1 target is still draining in tg/web")
			})
		})
	}
	t.Run("and not through a long one", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.elb.Register(r.group("web", elbtest.Group{Delay: time.Hour}), instance, 30080)
			r.elb.Deregister(instance)
			r.after(10*time.Second, func() { r.elb.Fail(elbtest.Silent()) })
			if took, err := r.out(true); err == nil || took > time.Minute {
				t.Errorf("it took %s: %v", took, err)
			}
		})
	})
}

func TestWait_SlowsDownWhereThrottled(t *testing.T) {
	bubble(t, func(r *rig) {
		r.elb.Register(r.group("web", elbtest.Group{Delay: time.Hour}), instance, 30080)
		r.elb.Deregister(instance)
		r.elb.Fail(elbtest.Throttled(4))
		ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
		defer cancel()
		if err := r.targets().Wait(ctx, wait.Node{Labeled: true}, func(string) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
		calls, last := r.elb.Calls(""), time.Duration(0)
		for n := range 3 {
			pause := calls[n+1].At.Sub(calls[n].At)
			if pause < time.Duration(4<<n)*time.Second || pause > 20*time.Second {
				t.Errorf("pause %d was %s", n+1, pause)
			}
			last = pause
		}
		if pause := calls[6].At.Sub(calls[5].At); pause >= last || pause < 2*time.Second || pause > 5*time.Second {
			t.Errorf("the pause after a good answer is %s", pause)
		}
	})
}

func TestWait_FindsTheGroupsOfTheVPC(t *testing.T) {
	bubble(t, func(r *rig) {
		r.elb.Page(2)
		for n := range 3 {
			r.elb.AddGroup(fmt.Sprintf("other-%d", n), elbtest.Group{})
		}
		elsewhere := r.elb.AddGroup("elsewhere", elbtest.Group{VPC: "vpc-1"})
		pods := r.elb.AddGroup("pods", elbtest.Group{Type: "ip"})
		r.elb.AddGroup("function", elbtest.Group{Type: "lambda"})
		r.elb.Register(r.elb.AddGroup("web", elbtest.Group{Delay: 20 * time.Second}), instance, 30080)
		r.elb.Deregister(instance)
		r.groups = []string{targets.All}
		took, err := r.out(true)
		if err != nil {
			t.Error(err)
		}
		r.wantWithin(took, 20*time.Second)
		asked := map[string]int{}
		for _, c := range r.elb.Calls("DescribeTargetHealth") {
			asked[c.Values.Get("TargetGroupArn")]++
		}
		if len(asked) != 4 || asked[elsewhere] > 0 || asked[pods] > 0 {
			t.Errorf("asked about %v", asked)
		}
		for arn, n := range asked {
			if n > 1 && !strings.Contains(arn, "/web/") {
				t.Errorf("asked %d times about %s, which has nothing of the machine", n, arn)
			}
		}
	})
}

func TestWait_EndsWithItsContext(t *testing.T) {
	bubble(t, func(r *rig) {
		r.elb.Register(r.group("web", elbtest.Group{}), instance, 30080)
		r.elb.Fail(elbtest.Silent())
		ctx, cancel := context.WithCancel(r.t.Context())
		r.after(time.Second, cancel)
		began := time.Now()
		if err := r.targets().Wait(ctx, wait.Node{Labeled: true}, func(string) {}); !errors.Is(err, context.Canceled) || time.Since(began) > time.Second {
			t.Errorf("after %s it ended with %v", time.Since(began), err)
		}
	})
}

func TestCheck_SaysTheMachinesStateInEachGroup(t *testing.T) {
	bubble(t, func(r *rig) {
		r.elb.Register(r.group("web", elbtest.Group{}), instance, 30080)
		r.group("empty", elbtest.Group{})
		r.elb.RemoveGroup(r.group("gone", elbtest.Group{}))
		r.elb.Deny("DescribeTargetHealth " + r.group("secret", elbtest.Group{}))
		found, err := r.targets().Check(r.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found {
			if f.Err != nil {
				got = append(got, f.Group+": "+f.Err.Error())
			} else {
				got = append(got, f.Text)
			}
		}
		want := []string{
			"the machine is healthy in tg/web", "the machine is no target in tg/empty", "tg/gone: there is no such target group",
			"tg/secret: the instance's role does not allow elasticloadbalancing:DescribeTargetHealth",
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q", got)
		}
	})
}
