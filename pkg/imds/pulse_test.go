package imds_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// watchPulse runs a source while f looks at it.
func watchPulse(t *testing.T, opts imds.Options, ec2 *service, f func(t *testing.T, source *imds.Source)) {
	t.Helper()
	inBubble(t, opts, ec2, func(t *testing.T, source *imds.Source) {
		ended := make(chan error)
		ctx, stop := context.WithCancel(t.Context())
		go func() { ended <- source.Run(ctx, &sink{}) }()
		f(t, source)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
}

func TestASourceThatLooksIsNotStuckWhateverItFinds(t *testing.T) {
	for name, test := range map[string]struct {
		opts imds.Options
		fail func(ec2 *service)
	}{
		"a healthy service":         {imds.Options{}, func(*service) {}},
		"one that hangs":            {imds.Options{}, func(ec2 *service) { ec2.say("token", answer{hang: true}) }},
		"one that refuses":          {imds.Options{}, func(ec2 *service) { ec2.say("token", answer{status: 403}) }},
		"slow looks by the setting": {imds.Options{MaintenanceInterval: time.Hour, Kinds: []event.Kind{event.ScheduledMaintenance}}, func(*service) {}},
		"kinds that are ruled out": {imds.Options{}, func(ec2 *service) {
			ec2.say(lifeCyclePath, answer{body: "on-demand"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			test.fail(ec2)
			watchPulse(t, test.opts, ec2, func(t *testing.T, source *imds.Source) {
				for range 20 {
					time.Sleep(max(10*time.Second, test.opts.MaintenanceInterval/6))
					if err := source.Stuck(); err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func TestALoopThatSaysNothingIsStuck(t *testing.T) {
	for path, limit := range map[string]time.Duration{spotPath: time.Minute, scheduledPath: 3*time.Minute + 45*time.Second} {
		t.Run(path, func(t *testing.T) {
			var hangs atomic.Bool
			opts := imds.Options{Observe: func(p imds.Poll) {
				for p.Document == path && hangs.Load() {
					time.Sleep(time.Second)
				}
			}}
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			watchPulse(t, opts, ec2, func(t *testing.T, source *imds.Source) {
				time.Sleep(time.Minute)
				hangs.Store(true)
				time.Sleep(limit - 30*time.Second) // it began to hang with its next look
				if err := source.Stuck(); err != nil {
					t.Errorf("too early: %v", err)
				}
				time.Sleep(time.Minute + 10*time.Second)
				err := source.Stuck()
				if err == nil || !strings.Contains(err.Error(), string(kindOfPath(path))) {
					t.Errorf("after %s: %v", limit, err)
				}
				hangs.Store(false)
				time.Sleep(2 * time.Second)
				if err := source.Stuck(); err != nil {
					t.Errorf("it goes on again: %v", err)
				}
			})
		})
	}
}

func kindOfPath(path string) event.Kind {
	for kind, p := range paths {
		if p == path {
			return kind
		}
	}
	return ""
}
