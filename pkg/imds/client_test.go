package imds_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// spotOnly polls for spot interruptions and nothing else.
var spotOnly = imds.Options{Kinds: []event.Kind{event.SpotInterruption}}

func TestTroubleIsNamedInPlainWords(t *testing.T) {
	for name, test := range map[string]struct {
		path string
		says answer
		want string
	}{
		"disabled":             {"token", answer{status: 403}, `reading "spot/instance-action": asking for a session token: the metadata service refuses to answer (403)`},
		"forbidden":            {spotPath, answer{status: 403}, `reading "spot/instance-action": the metadata service refuses to answer (403)`},
		"unauthorized":         {spotPath, answer{status: 401}, "does not accept the token that it has just given (401)"},
		"no token":             {"token", answer{status: 401}, "asking for a session token: the metadata service answers 401 Unauthorized"},
		"no such thing as v2":  {"token", answer{status: 404, body: "x"}, "asking for a session token: the metadata service answers 404 Not Found"},
		"busy":                 {spotPath, answer{status: 503}, "the metadata service answers 503 Service Unavailable"},
		"busy giving tokens":   {"token", answer{status: 503}, "asking for a session token: the metadata service answers 503"},
		"redirect":             {spotPath, answer{status: 302, header: http.Header{"Location": {"http://192.0.2.1/"}}}, "answers 302 Found"},
		"empty success":        {spotPath, answer{status: 204}, "answers 204 No Content"},
		"hang":                 {spotPath, answer{hang: true}, "no answer within 2s"},
		"hang giving tokens":   {"token", answer{hang: true}, "asking for a session token: no answer within 2s"},
		"too large":            {spotPath, answer{body: strings.Repeat(" ", 64<<10+1)}, "longer than 4 KiB"},
		"too large a token":    {"token", answer{body: strings.Repeat("x", 64<<10+1)}, "asking for a session token: the answer is longer than 4 KiB"},
		"an empty token":       {"token", answer{status: 200}, "0 bytes that are no token"},
		"a token of two lines": {"token", answer{body: "a\nb"}, "3 bytes that are no token"},
		"a token for no time":  {"token", answer{body: "a"}, `a token for "" seconds`},
		"a token for ever": {"token", answer{body: "a", header: http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {"9999999999"}}},
			`a token for "9999999999" seconds`},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(announced)
			ec2.say(test.path, test.says)
			bubble(t, spotOnly, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(3 * time.Second)
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

func TestLongestBodyIsRead(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "spot"})
	for path, size := range map[string]int{spotPath: 4 << 10, scheduledPath: 64 << 10} {
		ec2.say(path, answer{body: announced[path] + strings.Repeat(" ", size-len(announced[path]))})
	}
	bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		for _, kind := range []event.Kind{event.SpotInterruption, event.ScheduledMaintenance} {
			if events, _ := sink.last(kind); len(events) != 1 {
				t.Errorf("%s: got %v", kind, events)
			}
		}
	})
}

// A token that the service has dropped before its time (a reboot of the service, a clock set back) costs one more
// request and no poll.
func TestRefusedTokenIsRenewedAtOnce(t *testing.T) {
	ec2 := serve(announced)
	bubble(t, spotOnly, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Second)
		for _, status := range []int{401, 401, 401} {
			before := len(ec2.times("token"))
			ec2.once(spotPath, answer{status: status})
			time.Sleep(2 * time.Second)
			if got := len(ec2.times("token")) - before; got != 1 {
				t.Errorf("asked for %d tokens, want 1", got)
			}
		}
		if _, troubles := sink.of(event.SpotInterruption); len(troubles) > 0 {
			t.Errorf("got trouble: %v", troubles[0].err)
		}
	})
}

func TestExpiredTokenIsRenewedWithoutTrouble(t *testing.T) {
	ec2 := serve(announced)
	bubble(t, spotOnly, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Hour)
		if _, troubles := sink.of(event.SpotInterruption); len(troubles) > 0 {
			t.Errorf("got trouble: %v", troubles[0].err)
		}
		if len(ec2.bare) > 0 {
			t.Errorf("asked without a token: %v", ec2.bare)
		}
	})
}

// IMDSv1 is never fallen back to: not when tokens are refused, nor later.
func TestNothingIsAskedWithoutToken(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 405, 500} {
		ec2 := serve(announced)
		ec2.say("token", answer{status: status, body: "no"})
		bubble(t, imds.Options{}, ec2, func(t *testing.T, sink *sink) {
			time.Sleep(10 * time.Minute)
			for _, path := range paths {
				if asked := ec2.times(path); len(asked) > 0 {
					t.Errorf("token endpoint answers %d: %s was asked for %d times", status, path, len(asked))
				}
			}
		})
	}
}

func TestObserverSeesEveryRequest(t *testing.T) {
	var mu sync.Mutex
	seen := map[string][]imds.Poll{}
	ec2 := serve(map[string]string{lifeCyclePath: "spot", spotPath: announced[spotPath], rebalancePath: "garbage"})
	ec2.say(targetStatePath, answer{hang: true})
	opts := imds.Options{Observe: func(p imds.Poll) {
		mu.Lock()
		defer mu.Unlock()
		seen[p.Document] = append(seen[p.Document], p)
	}}
	bubble(t, opts, ec2, func(t *testing.T, _ *sink) { time.Sleep(2200 * time.Millisecond) })
	for path, want := range map[string]imds.Result{
		lifeCyclePath: imds.OK, spotPath: imds.OK, rebalancePath: imds.Failed, targetStatePath: imds.Failed,
		scheduledPath: imds.Absent, historyPath: imds.Absent,
	} {
		if len(seen[path]) == 0 {
			t.Errorf("%s: nothing observed", path)
			continue
		}
		p := seen[path][0]
		if p.Result != want || (p.Err != nil) != (want == imds.Failed) {
			t.Errorf("%s: observed %q with error %v, want %q", path, p.Result, p.Err, want)
		}
	}
	if hang := seen[targetStatePath]; len(hang) > 0 && hang[0].Latency != 2*time.Second {
		t.Errorf("a request that hangs was observed to take %s, want 2s", hang[0].Latency)
	}
}

func TestSameTroubleReadsTheSame(t *testing.T) {
	ec2 := serve(nil)
	ec2.say(spotPath, answer{status: 500})
	bubble(t, spotOnly, ec2, func(t *testing.T, sink *sink) {
		time.Sleep(time.Minute)
		_, troubles := sink.of(event.SpotInterruption)
		words := make([]string, 0, len(troubles))
		for _, trouble := range troubles {
			words = append(words, trouble.err.Error())
		}
		if different := slices.Compact(words); len(different) != 1 {
			t.Errorf("got %q", different)
		}
	})
}

func TestADocumentIsReadAsItIsAndOneThatIsNotThereIsToldFromTrouble(t *testing.T) {
	t.Parallel()
	srv := imdstest.NewServer()
	defer srv.Close()
	source := newSource(t, imds.Options{Endpoint: srv.URL})
	role, err := source.Document(t.Context(), "iam/security-credentials/")
	if err != nil || string(role) != imdstest.Role {
		t.Fatalf("the role is %q, %v", role, err)
	}
	body, err := source.Document(t.Context(), "iam/security-credentials/"+imdstest.Role)
	var credentials struct{ AccessKeyID, SecretAccessKey, Token string }
	if err := errors.Join(err, json.Unmarshal(body, &credentials)); err != nil || credentials.Token == "" {
		t.Errorf("the credentials are %q, %v", body, err)
	}
	if _, err := source.Document(t.Context(), "spot/instance-action"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a document that is not there: %v, want fs.ErrNotExist", err)
	}
	srv.Fault(imdstest.Fault{Kind: imdstest.Status, Status: 500})
	if _, err := source.Document(t.Context(), "instance-id"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a service that fails: %v, want trouble", err)
	}
}
