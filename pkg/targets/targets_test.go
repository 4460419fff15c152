package targets_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/internal/pipetest"
	"github.com/nth-project/nth/pkg/internal/querytest"
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
	metadata querytest.Metadata
	groups   []string
	server   *pipetest.Server

	reports []string // Wait reports in the goroutine of its caller.
}

// bubble runs f with a rig.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, elb: elbtest.New(), metadata: querytest.MetadataOf(instance, "eu-central-1")}
		r.metadata["mac"], r.metadata["network/interfaces/macs/0a:1b/vpc-id"] = "0a:1b", elbtest.VPC

		r.server = pipetest.Serve(r.elb)
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

func (r *rig) targets() *targets.Targets {
	account := aws.Config{
		Region: "eu-central-1", BaseEndpoint: aws.String("http://elb.test"), Credentials: role.Credentials(r.metadata.Document),
		HTTPClient: role.Unhurried(&http.Client{Transport: &http.Transport{DialContext: r.server.Dial}}),
	}
	return targets.New(targets.Options{
		Groups: r.groups, Metadata: r.metadata.Document, AWS: func(context.Context) (aws.Config, error) { return account, nil },
	})
}

// out waits, and returns how long that took and what came of it.
func (r *rig) out(labeled bool) (time.Duration, error) {
	began := time.Now()
	err := r.targets().Wait(r.t.Context(), wait.Node{Labeled: labeled}, func(left string) {
		r.reports = append(r.reports, left)
	})
	return time.Since(began), err
}

// after has something happen later.
func (r *rig) after(d time.Duration, do func()) {
	go func() { time.Sleep(d); do() }()
}

const (
	health  = "elasticloadbalancing:DescribeTargetHealth"
	healthy = "the machine is still in target group tg/web (healthy)"
	leaves  = "the machine is still in target group tg/web (draining)"
)

// web adds the group tg/web, of which the machine is a target that drains for so long.
func (r *rig) web(delay time.Duration) string {
	arn := r.group("web", elbtest.Group{Delay: delay})
	r.elb.Register(arn, instance, 30080)
	return arn
}

func TestWait_EndsWhenAndWhy(t *testing.T) {
	for name, row := range map[string]struct {
		prepare   func(r *rig)
		unlabeled bool
		took      time.Duration // and less than a look more
		why       string
		reports   []string
		asked     int // requests at most; 0 is any number
	}{
		"the machine is deregistered": {
			prepare: func(r *rig) { r.web(0); r.after(7*time.Second, func() { r.elb.Deregister(instance) }) },
			took:    7 * time.Second, reports: []string{healthy},
		},
		"the machine has drained, on both ports": {
			prepare: func(r *rig) {
				web, api := r.web(3*time.Minute), r.group("api", elbtest.Group{})
				r.elb.Register(web, instance, 30443)
				r.elb.Register(web, another, 30080)
				r.elb.Register(api, another, 30080)
				r.after(7*time.Second, func() { r.elb.Deregister(instance) })
			},
			took: 187 * time.Second, reports: []string{healthy, leaves}, asked: 100,
		},
		"an unhealthy target drains, too": {
			prepare: func(r *rig) {
				r.web(20 * time.Second)
				r.elb.SetState(instance, "unhealthy")
				r.elb.Deregister(instance)
			},
			took: 20 * time.Second, reports: []string{leaves},
		},
		"a target that is not reached yet": {
			prepare: func(r *rig) {
				r.web(0)
				r.elb.SetState(instance, "initial")
				r.after(20*time.Second, func() { r.elb.Deregister(instance) })
			},
			took: 20 * time.Second, reports: []string{"the machine is still in target group tg/web (initial)"},
		},
		"an unused target gets nothing": {prepare: func(r *rig) { r.web(0); r.elb.SetState(instance, "unused") }},
		"a group of pods' addresses": {prepare: func(r *rig) {
			r.elb.Register(r.group("pods", elbtest.Group{Type: "ip", Delay: 30 * time.Second}), "10.0.0.7", 8080)
		}},
		"no controller deregisters": {
			prepare: func(r *rig) { r.web(0) }, took: time.Minute, reports: []string{healthy},
			why: healthy + ", and no controller has begun to deregister it within 1m0s",
		},
		"nobody is to deregister": {
			prepare: func(r *rig) { r.web(0) }, unlabeled: true, why: healthy + ", and no controller will deregister it, because the node lacks the label node.kubernetes.io/exclude-from-external-load-balancers",
		},
		"the machine is no target": {prepare: func(r *rig) {
			r.elb.RemoveGroup(r.web(0))
			r.elb.Register(r.group("other", elbtest.Group{}), another, 30080)
		}},

		"the health is refused": {
			prepare: func(r *rig) { r.web(0); r.elb.Deny("DescribeTargetHealth") }, why: "the IAM role does not allow " + health,
		},
		"the groups are refused": {
			prepare: func(r *rig) { r.groups = []string{targets.All}; r.elb.Deny("DescribeTargetGroups") },
			why:     "the IAM role does not allow elasticloadbalancing:DescribeTargetGroups",
		},
		"there are too many groups": {
			prepare: func(r *rig) {
				for n := range 101 {
					r.elb.AddGroup(fmt.Sprintf("other-%d", n), elbtest.Group{})
				}
				r.groups = []string{targets.All}
			},
			why: "the instance's VPC has 101 target groups, too many to look at: name those of this node in load_balancers.target_groups",
		},
		"there is no role": {prepare: func(r *rig) { r.web(0); delete(r.metadata, "iam/security-credentials/") }, why: "the instance has no IAM role"},
		"a group fails for a moment": {
			prepare: func(r *rig) {
				bad := r.group("bad", elbtest.Group{Delay: time.Minute})
				r.elb.Register(bad, instance, 30080)
				r.web(time.Minute)
				r.elb.Deregister(instance)
				r.elb.Fail(elbtest.Fault{Status: 500, Code: "InternalFailure", Times: 1, About: bad})
			},
			took: time.Minute, reports: []string{"the machine is still in target group tg/bad (draining), target group tg/web (draining)"},
		},
		"a short silence": {prepare: func(r *rig) { r.outage(elbtest.Fault{}, 40*time.Second) }, took: 40 * time.Second, reports: []string{leaves}},
		"a short throttling": {
			prepare: func(r *rig) { r.outage(querytest.Throttled("", 0), 55*time.Second) }, took: 55 * time.Second, reports: []string{leaves},
		},
		"a long silence": {
			prepare: func(r *rig) { r.outage(elbtest.Fault{}, time.Hour) }, took: 36 * time.Second, reports: []string{leaves},
			why: "calling " + health + ": no answer within 4s",
		},
		"all are throttled": {
			prepare: func(r *rig) {
				for n := range 60 {
					r.elb.Register(r.group(fmt.Sprintf("web-%d", n), elbtest.Group{Delay: 20 * time.Second}), instance, 30080)
				}
				r.elb.Fail(querytest.Throttled("", 0))
			}, took: 30 * time.Second, asked: 60,
			why: "calling " + health + ": Throttling: it is a fault",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				row.prepare(r)
				took, err := r.out(!row.unlabeled)
				if why := fmt.Sprint(err); err == nil && row.why != "" || err != nil && why != row.why {
					t.Errorf("the reason is %v, want %s", err, row.why)
				}
				if look := 20 * time.Second; took < row.took || took > row.took+look || row.took == 0 && took > 0 {
					t.Errorf("it took %s, want %s and less than a look more", took, row.took)
				}
				if asked := len(r.elb.Calls("")); row.asked > 0 && asked > row.asked {
					t.Errorf("%d requests, want %d at most", asked, row.asked)
				}
				if !slices.Equal(r.reports, row.reports) {
					t.Errorf("reported %q, want %q", r.reports, row.reports)
				}
			})
		})
	}
}

// outage has the machine leave a group, and the service fail for twenty seconds, or for good.
func (r *rig) outage(fault elbtest.Fault, drains time.Duration) {
	r.web(drains)
	r.elb.Deregister(instance)
	r.after(10*time.Second, func() { r.elb.Fail(fault) })
	if drains < time.Hour {
		r.after(30*time.Second, r.elb.Lift)
	}
}

func TestWait_EndsWithItsContext(t *testing.T) {
	bubble(t, func(r *rig) {
		r.web(0)
		r.elb.Fail(elbtest.Fault{})
		ctx, cancel := context.WithCancel(r.t.Context())
		r.after(time.Second, cancel)
		began := time.Now()
		if err := r.targets().Wait(ctx, wait.Node{Labeled: true}, func(string) {}); !errors.Is(err, context.Canceled) || time.Since(began) > time.Second {
			t.Errorf("after %s it ended with %v", time.Since(began), err)
		}
	})
}

func TestWait_SlowsDownWhereThrottled(t *testing.T) {
	bubble(t, func(r *rig) {
		r.web(time.Hour)
		r.elb.Deregister(instance)
		r.elb.Fail(querytest.Throttled("", 2))
		ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
		defer cancel()
		if err := r.targets().Wait(ctx, wait.Node{Labeled: true}, func(string) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
		calls := r.elb.Calls("")
		for n, most := range []time.Duration{8, 16, 4} { // The third is after a good answer.
			if pause := calls[n+1].At.Sub(calls[n].At); pause < most*time.Second/2 || pause > most*time.Second {
				t.Errorf("pause %d was %s, want %d s at most, and half of that at least", n+1, pause, most)
			}
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
		r.web(20 * time.Second)
		r.elb.Deregister(instance)
		r.groups = []string{targets.All}
		if took, err := r.out(true); err != nil || took < 20*time.Second {
			t.Errorf("it took %s: %v", took, err)
		}
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

func TestCheck_SaysTheMachinesStateInEachGroup(t *testing.T) {
	bubble(t, func(r *rig) {
		r.web(0)
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
			"tg/secret: the IAM role does not allow elasticloadbalancing:DescribeTargetHealth",
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q", got)
		}
	})
}
