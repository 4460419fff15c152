package imds_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// perMinute counts how often a path was asked for since a moment, in requests per minute.
func perMinute(ec2 *service, path string, since time.Time) float64 {
	n := 0
	for _, at := range ec2.times(path) {
		if !at.Before(since) {
			n++
		}
	}
	return float64(n) / time.Since(since).Minutes()
}

// rate is how many requests a minute are right.
type rate struct{ least, most float64 }

func judgeRates(t *testing.T, ec2 *service, since time.Time, want map[string]rate) {
	t.Helper()
	for path, right := range want {
		if got := perMinute(ec2, path, since); got < right.least || got > right.most {
			t.Errorf("%s: %.1f requests a minute, want %.1f to %.1f", path, got, right.least, right.most)
		}
	}
}

func TestCadenceOfAHealthyService(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot"})
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Second)
		began := time.Now()
		time.Sleep(20 * time.Minute)
		judgeRates(t, ec2, began, map[string]rate{
			spotPath: {117, 123}, targetStatePath: {29, 31}, rebalancePath: {11.5, 12.5}, scheduledPath: {1.9, 2.1},
			historyPath: {1.9, 2.1}, lifeCyclePath: {0, 0},
			"token": {0.1, 0.3}, // one every five minutes for all
		})
		if len(ec2.bare) > 0 {
			t.Errorf("asked without a token: %v", ec2.bare)
		}
	})
}

func TestCadenceOfAFailingService(t *testing.T) {
	faults := map[string]func(ec2 *service){
		"documents answer 503": func(ec2 *service) {
			for _, path := range paths {
				ec2.say(path, answer{status: 503})
			}
		},
		"tokens are refused":      func(ec2 *service) { ec2.say("token", answer{status: 403}) },
		"tokens are garbage":      func(ec2 *service) { ec2.say("token", answer{body: "<html>\n"}) },
		"documents hang":          func(ec2 *service) { everywhere(ec2, answer{hang: true}) },
		"documents are too large": func(ec2 *service) { everywhere(ec2, answer{body: string(make([]byte, 70<<10))}) },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			observe, counts := counter()
			opts := imds.Options{Observe: observe}
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(time.Minute)
				fault(ec2)
				time.Sleep(10 * time.Minute) // for the long waits to be reached and the tokens to expire
				began, before := time.Now(), counts()
				time.Sleep(20 * time.Minute)
				synctest.Wait()
				// Urgent ones at half their cadence or better, the others about once a minute. If nothing is answered, each is waited for
				// for 20 seconds, and that of the state is followed by a pause as long.
				spot, state := rate{57, 123}, rate{14, 31}
				if name == "documents hang" {
					spot, state = rate{2.7, 3.3}, rate{1.3, 1.7}
				}
				for path, right := range map[string]rate{
					spotPath: spot, targetStatePath: state, rebalancePath: {0.9, 1.4}, scheduledPath: {0.9, 1.4},
				} {
					got := float64(counts()[path]-before[path]) / time.Since(began).Minutes()
					if got < right.least || got > right.most {
						t.Errorf("%s: %.1f attempts a minute, want %.1f to %.1f", path, got, right.least, right.most)
					}
				}
				for path, most := range ec2.atOnce() {
					if most > 1 {
						t.Errorf("%s: %d requests at once", path, most)
					}
				}
			})
		})
	}
}

// everywhere sets the answer of all four documents.
func everywhere(ec2 *service, a answer) {
	for _, path := range paths {
		ec2.say(path, a)
	}
}

func TestTroubleIsNeverReadAsAllClear(t *testing.T) {
	faults := map[string]answer{
		"500": {status: 500}, "503": {status: 503}, "401": {status: 401}, "403": {status: 403}, "302": {status: 302},
		"204": {status: 204}, "hang": {hang: true}, "too large": {body: string(make([]byte, 70<<10))},
		"404 too large": {status: 404, body: string(make([]byte, 70<<10))}, "garbage": {body: "\x00\x01{{{<html>"},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(announced)
			bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(time.Second)
				everywhere(ec2, fault)
				time.Sleep(10 * time.Minute)
				for _, kind := range imdsKinds {
					snapshots, troubles := sink.of(kind)
					if len(snapshots) == 0 || len(troubles) < 5 {
						t.Errorf("%s: %d snapshots and %d troubles", kind, len(snapshots), len(troubles))
					}
					for _, s := range snapshots {
						if len(s.events) != 1 {
							t.Errorf("%s: got snapshot %+v, want none but those of before", kind, s.events)
						}
					}
				}
			})
		})
	}
}

func TestNoticeIsSeenPromptlyAfterAnOutage(t *testing.T) {
	for name, fault := range map[string]answer{"errors": {status: 500}, "hang": {hang: true}} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			ec2.say(spotPath, fault)
			bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
				for range 8 {
					ec2.say(spotPath, fault)
					time.Sleep(2*time.Minute + 123*time.Millisecond)
					ec2.say(spotPath, answer{body: announced[spotPath]})
					within := time.Second + 10*time.Millisecond
					if fault.hang {
						within += 20 * time.Second
					}
					time.Sleep(within)
					if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
						t.Fatalf("the notice was not seen within %s", within)
					}
					ec2.unsay(spotPath)
					time.Sleep(time.Second)
					if events, _ := sink.last(event.SpotInterruption); len(events) != 0 {
						t.Fatalf("got %v after the notice was withdrawn", events)
					}
				}
			})
		})
	}
}

func TestOneHangingDocumentDelaysNoOther(t *testing.T) {
	for kind, path := range paths {
		t.Run(string(kind), func(t *testing.T) {
			ec2 := serve(map[string]string{lifeCyclePath: "spot"})
			ec2.say(path, answer{hang: true})
			bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(time.Second)
				began := time.Now()
				time.Sleep(20 * time.Minute)
				want := map[string]rate{
					spotPath: {117, 123}, targetStatePath: {29, 31}, rebalancePath: {11.4, 12.6}, scheduledPath: {1.85, 2.15},
				}
				delete(want, path)
				judgeRates(t, ec2, began, want)
				if most := ec2.atOnce()[path]; most != 1 {
					t.Errorf("%d requests for %s at once, want one", most, path)
				}
			})
		})
	}
}

func TestUrgentPollsKeepTheirCadenceWithARecommendation(t *testing.T) {
	ec2 := serve(announced)
	ec2.unsay(spotPath)
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Second)
		began := time.Now()
		time.Sleep(20 * time.Minute)
		judgeRates(t, ec2, began, map[string]rate{spotPath: {117, 123}, targetStatePath: {29, 31}})
	})
}

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
	for path, limit := range map[string]time.Duration{spotPath: time.Minute, scheduledPath: 4 * time.Minute} {
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
