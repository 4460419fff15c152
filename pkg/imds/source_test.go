package imds_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// announced is everything at once.
var announced = map[string]string{
	spotPath:        `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`,
	rebalancePath:   `{"noticeTime":"2020-10-27T08:22:00Z"}`,
	targetStatePath: "Terminated",
	scheduledPath:   listOf(planned("i-1", "active")),
}

// imdsKinds are the kinds that the metadata service announces.
var imdsKinds = []event.Kind{
	event.SpotInterruption, event.RebalanceRecommendation, event.ScheduledMaintenance, event.ASGTermination,
}

// paths are the first documents of the kinds.
var paths = map[event.Kind]string{
	event.SpotInterruption: spotPath, event.RebalanceRecommendation: rebalancePath,
	event.ScheduledMaintenance: scheduledPath, event.ASGTermination: targetStatePath,
}

func TestSource_PollsTheKindsThatItIsAskedFor(t *testing.T) {
	lasting := []event.Kind{event.ScheduledMaintenance, event.ASGTermination}
	for name, test := range map[string]struct {
		kinds  []event.Kind
		polled []event.Kind
		says   string
	}{
		"all":       {imdsKinds, imdsKinds, "polling for spot-interruption, rebalance-recommendation, scheduled-maintenance, asg-termination"},
		"not all":   {lasting, lasting, "polling for scheduled-maintenance, asg-termination"},
		"none here": {[]event.Kind{event.Shutdown}, nil, "not polling the metadata service: the settings ignore every kind of event that it announces"},
	} {
		t.Run(name, func(t *testing.T) {
			ec2, opts := serve(announced), imds.Options{Kinds: test.kinds}
			if source, err := imds.New(opts); err != nil || source.Polled() != test.says {
				t.Errorf("it says %q (%v), want %q", source.Polled(), err, test.says)
			}
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(headStart)
				synctest.Wait()
				for _, kind := range imdsKinds {
					snapshots, _ := sink.of(kind)
					asked := len(ec2.times(paths[kind]))
					isPolled := asked > 0 && len(snapshots) > 0 && len(snapshots[0].events) == 1
					if isPolled != slices.Contains(test.polled, kind) || !isPolled && asked+len(snapshots) > 0 {
						t.Errorf("%s: asked %d times, got %+v", kind, asked, snapshots)
					}
				}
			})
		})
	}
}

func TestInstance_IsDescribedAsFarAsItCanBeRead(t *testing.T) {
	ec2 := serve(map[string]string{
		"instance-id": "i-1234567890abcdef0", "instance-type": "m5.large", lifeCyclePath: "spot",
		"placement/region": "us-east-1", "placement/availability-zone": "us-east-1a", "local-ipv4": "10.0.0.4",
		"local-hostname": "ip-10-0-0-4.ec2.internal", "public-ipv4": "192.0.2.1",
		"dynamic/instance-identity/document": `{"accountId": "123456789012", "devpayProductCodes": null}`,
	})
	want := imds.Instance{
		ID: "i-1234567890abcdef0", Type: "m5.large", LifeCycle: "spot", Account: "123456789012",
		Region: "us-east-1", Zone: "us-east-1a",
		LocalIP: "10.0.0.4", LocalName: "ip-10-0-0-4.ec2.internal", PublicIP: "192.0.2.1",
	}
	inBubble(t, imds.Options{}, ec2, func(t *testing.T, source *imds.Source) {
		if got, err := source.Instance(t.Context()); err != nil || got != want {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
		ec2.say("instance-type", answer{status: 500})
		ec2.say("local-hostname", answer{body: "\x00"})
		want.Type, want.LocalName = "", ""
		got, err := source.Instance(t.Context())
		if got != want {
			t.Errorf("with two faults: got %+v\nwant %+v", got, want)
		}
		if err == nil || !strings.Contains(err.Error(), "instance-type") || !strings.Contains(err.Error(), "local-hostname") {
			t.Errorf("got error %v, want one that names both", err)
		}
	})
}

// checkUp checks a service, and how long that takes.
func checkUp(t *testing.T, ec2 *service, f func(c imds.Checkup, took time.Duration)) {
	t.Helper()
	inBubble(t, imds.Options{}, ec2, func(t *testing.T, source *imds.Source) {
		began := time.Now()
		c := source.Check(t.Context())
		f(c, time.Since(began))
	})
}

func TestCheck_AsksForEverythingOnce(t *testing.T) {
	ec2 := serve(map[string]string{
		lifeCyclePath: "spot", spotPath: `{"action":"terminate","time":"2017-09-18T08:22:00Z"}`, rebalancePath: "<html>",
	})
	checkUp(t, ec2, func(c imds.Checkup, _ time.Duration) {
		if c.Unreachable != nil || c.Endpoint != "http://169.254.169.254" {
			t.Errorf("got %+v", c)
		}
		results := map[string]imds.Result{}
		for _, p := range c.Polls {
			results[p.Document] = p.Result
		}
		for path, want := range map[string]imds.Result{
			spotPath: imds.OK, targetStatePath: imds.Absent, rebalancePath: imds.Failed, scheduledPath: imds.Absent, historyPath: imds.Absent,
		} {
			if results[path] != want || len(ec2.times(path)) != 1 {
				t.Errorf("%s: %s, asked for %d times; want %s and once", path, results[path], len(ec2.times(path)), want)
			}
		}
	})
}

func TestCheck_EndsWithoutAToken(t *testing.T) {
	for want, token := range map[string]answer{
		"no answer within 10s":       {hang: true},
		"disabled for this instance": {status: http.StatusForbidden},
	} {
		ec2 := serve(nil)
		ec2.say("token", token)
		checkUp(t, ec2, func(c imds.Checkup, took time.Duration) {
			if c.Unreachable == nil || !strings.Contains(c.Unreachable.Error(), want) || len(c.Polls) > 0 || took > 10*time.Second {
				t.Errorf("%s: got %+v after %s", want, c, took)
			}
		})
	}
}

// spotOnly polls for spot interruptions and nothing else.
var spotOnly = imds.Options{Kinds: []event.Kind{event.SpotInterruption}}

func TestClient_NamesTroubleInPlainWords(t *testing.T) {
	for name, test := range map[string]struct {
		path string
		says answer
		want string
	}{
		"disabled":             {"token", answer{status: 403}, `reading metadata "spot/instance-action": asking for a session token: the metadata service refuses to answer (403)`},
		"forbidden":            {spotPath, answer{status: 403}, `reading metadata "spot/instance-action": the metadata service refuses to answer (403)`},
		"unauthorized":         {spotPath, answer{status: 401}, "does not accept the session token (401)"},
		"no token":             {"token", answer{status: 401}, "asking for a session token: the metadata service answers 401 Unauthorized"},
		"busy":                 {spotPath, answer{status: 503}, "the metadata service answers 503 Service Unavailable"},
		"redirect":             {spotPath, answer{status: 302, header: http.Header{"Location": {"http://192.0.2.1/"}}}, "answers 302 Found"}, // which would get the token
		"empty success":        {spotPath, answer{status: 204}, "answers 204 No Content"},
		"hang":                 {spotPath, answer{hang: true}, "no answer within 10s"},
		"hang giving tokens":   {"token", answer{hang: true}, "asking for a session token: no answer within 10s"},
		"too large":            {spotPath, answer{body: strings.Repeat(" ", 64<<10+1)}, "longer than 4 KiB"},
		"404 too large":        {spotPath, answer{status: 404, body: strings.Repeat(" ", 64<<10+1)}, "longer than 4 KiB"},
		"too long a header":    {spotPath, answer{body: "x", header: http.Header{"X-More": {strings.Repeat("x", 32<<10)}}}, "header"},
		"too large a token":    {"token", answer{body: strings.Repeat("x", 64<<10+1)}, "asking for a session token: the answer is longer than 4 KiB"},
		"an empty token":       {"token", answer{status: 200}, "returned an invalid session token (0 bytes)"},
		"a token of two lines": {"token", answer{body: "a\nb"}, "returned an invalid session token (3 bytes)"},
		"a token for no time":  {"token", answer{body: "a"}, "returned a session token without a valid TTL header"},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(announced)
			ec2.say(test.path, test.says)
			bubble(t, spotOnly, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(11 * time.Second)
				snapshots, troubles := sink.of(event.SpotInterruption)
				if len(snapshots) > 0 {
					t.Errorf("got %d snapshots", len(snapshots))
				}
				for _, trouble := range troubles {
					if !strings.Contains(trouble.err.Error(), test.want) {
						t.Errorf("got trouble %q\nwant it to say %q", trouble.err, test.want)
					}
				}
				if len(troubles) == 0 {
					t.Error("got no trouble")
				}
			})
		})
	}
}

// IMDSv1 is never fallen back to: not when tokens are refused, nor later.
func TestClient_AsksNothingWithoutAToken(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 405, 500} {
		ec2 := serve(announced)
		ec2.say("token", answer{status: status, body: "no"})
		bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
			time.Sleep(2 * time.Minute)
			for _, path := range paths {
				if asked := ec2.times(path); len(asked) > 0 {
					t.Errorf("token endpoint answers %d: %s was asked for %d times", status, path, len(asked))
				}
			}
		})
	}
}

func TestDocument_IsReadAsItIs(t *testing.T) {
	for name, test := range map[string]struct {
		says answer
		lag  time.Duration
		want string
		err  string // "" for none
	}{
		"there":             {answer{body: "a\nb "}, 0, "a\nb ", ""},
		"of a slow service": {answer{body: "a"}, 4 * time.Second, "a", ""},
		"absent":            {answer{}, 0, "", fs.ErrNotExist.Error()},
		"broken":            {answer{status: 500}, 0, "", "500"},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(nil)
			ec2.say("tags", test.says)
			inBubble(t, imds.Options{}, &lagging{next: ec2, lag: test.lag}, func(t *testing.T, source *imds.Source) {
				got, err := source.Document(t.Context(), "tags")
				if string(got) != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %q, %v", got, err)
				}
				if absent := test.err == fs.ErrNotExist.Error(); absent != errors.Is(err, fs.ErrNotExist) {
					t.Errorf("got %v, want fs.ErrNotExist only if it is absent", err)
				}
			})
		})
	}
}

// What the SDK would read from its environment must not change what is asked.
func TestClient_IsDisabledByNoVariable(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_EC2_METADATA_V1_DISABLED", "false")
	server := httptest.NewServer(serve(announced))
	t.Cleanup(server.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.URL)
	source, err := imds.New(spotOnly)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := source.Document(t.Context(), spotPath); err != nil || string(got) != announced[spotPath] {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestClient_AsksTheAddressOfTheMode(t *testing.T) {
	for mode, want := range map[string]string{"": "169.254.169.254:80", "ipv4": "169.254.169.254:80", "IPv6": "[fd00:ec2::254]:80"} {
		source, err := imds.New(imds.Options{Kinds: spotOnly.Kinds, EndpointMode: mode})
		if err != nil {
			t.Fatal(err)
		}
		var dialed []string
		source.DialWith(func(_ context.Context, _, address string) (net.Conn, error) {
			dialed = append(dialed, address)
			return nil, &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}
		})
		if _, err := source.Document(t.Context(), spotPath); !slices.Equal(dialed, []string{want}) || !strings.Contains(err.Error(), "dial: network is unreachable") {
			t.Errorf("mode %q: dialed %q, %v", mode, dialed, err)
		}
	}
}
