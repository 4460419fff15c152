package role_test

import (
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nth-project/nth/pkg/asg"
	nthec2 "github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/internal/pipetest"
	"github.com/nth-project/nth/pkg/internal/querytest"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/sqs"
	"github.com/nth-project/nth/pkg/targets"
	"github.com/nth-project/nth/pkg/targets/elbtest"
)

func said(code string) error {
	return fmt.Errorf("asking: %w", &smithy.GenericAPIError{Code: code, Message: "no\nway"})
}

func TestRefused_KnowsEveryCodeOfAWS(t *testing.T) {
	t.Parallel()
	for _, code := range []string{
		"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AWS.SimpleQueueService.AccessDenied", "Client.UnauthorizedOperation",
		"NotAuthorized", "UnauthorizedAccess",
	} {
		if !role.Refused(said(code)) {
			t.Errorf("%s is no refusal", code)
		}
	}
	for _, err := range []error{
		nil, errors.New("AccessDenied"), said("Throttling"), said("DryRunOperation"), said("ValidationError"), said("ExpiredToken"), said("AuthFailure"),
	} {
		if role.Refused(err) {
			t.Errorf("%v is a refusal", err)
		}
	}
}

func TestRight_IsAllowedIfTheServiceLooksAtTheRequest(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		err     error
		allowed bool
		known   bool
	}{
		{nil, true, true},
		{said("DryRunOperation"), true, true},
		{said("ValidationError"), true, true},
		{said("InvalidParameterValue"), true, true},
		{said("UnauthorizedOperation"), false, true},
		{role.Explain("ec2:DescribeInstances", time.Second, said("AccessDenied")), false, true},
		{said("QueueDoesNotExist"), false, false},
		{errors.New("no network"), false, false},
	} {
		right := role.Right{Name: "ec2:DescribeInstances", Try: func(context.Context) error { return row.err }}
		if allowed, err := right.Allowed(t.Context()); allowed != row.allowed || (err == nil) != row.known {
			t.Errorf("after %v it is allowed: %t (%v), want %t", row.err, allowed, err, row.allowed)
		}
	}
}

func TestExplain_IsOneLine(t *testing.T) {
	t.Parallel()
	const action = "ec2:DescribeInstances"
	unreadable := &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: http.StatusOK}}}
	for _, row := range []struct {
		err  error
		want string
	}{
		{said("UnauthorizedOperation"), "the IAM role does not allow ec2:DescribeInstances"},
		{fmt.Errorf("reading: %w", fs.ErrNotExist), "the instance has no IAM role"},
		{said("Throttling"), `calling ec2:DescribeInstances: Throttling: no\nway`},
		{unreadable, "calling ec2:DescribeInstances: cannot decode the answer with HTTP status 200"},
		{fmt.Errorf("sending: %w", context.DeadlineExceeded), "calling ec2:DescribeInstances: no answer within 10s"},
		{fmt.Errorf("sending: %w", &url.Error{Op: "Post", URL: "https://ec2", Err: errors.New("there is no network")}), "calling ec2:DescribeInstances: there is no network"},
	} {
		if got := role.Explain(action, 10*time.Second, row.err); got == nil || got.Error() != row.want {
			t.Errorf("%v is explained as %v, want %s", row.err, got, row.want)
		}
	}
	if err := role.Explain(action, time.Second, nil); err != nil {
		t.Errorf("nothing is explained as %v", err)
	}
}

func TestPause_GrowsAndDiffers(t *testing.T) {
	t.Parallel()
	const first, longest = time.Second, time.Minute
	for failures, most := range map[int]time.Duration{
		0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 6: 32 * time.Second, 7: time.Minute, 8: time.Minute, 1 << 40: time.Minute,
	} {
		different := map[time.Duration]bool{}
		for range 50 {
			pause := role.Pause(failures, first, longest)
			if pause < most/2 || pause > most {
				t.Errorf("after %d failures the pause is %s, want %s to %s", failures, pause, most/2, most)
			}
			different[pause] = true
		}
		if len(different) < 40 {
			t.Errorf("after %d failures, of 50 pauses %d differ", failures, len(different))
		}
	}
	for range 50 {
		if every := role.Spread(time.Minute); every < 54*time.Second || every > 66*time.Second {
			t.Errorf("an interval of a minute is %s", every)
		}
	}
}

// slow is a connection on which the writer goes on a second after the other side has read.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	time.Sleep(time.Second)
	return n, err
}

// The SDK is done with a request when the answer begins. Whoever still writes it must not take that for a failure, and the rest of the
// answer with it.
func TestUnhurried_ReadsAnEarlyAnswerWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var region ec2test.Service
		region.Add(ec2test.Instance{ID: "i-1", State: "running"})
		server := pipetest.Serve(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			said := httptest.NewRecorder()
			region.ServeHTTP(said, q)
			whole := said.Body.Bytes()
			for _, part := range [][]byte{whole[:len(whole)/2], whole[len(whole)/2:]} {
				_, _ = w.Write(part) // a client that has left needs no answer
				w.(http.Flusher).Flush()
				time.Sleep(3 * time.Second)
			}
		}))
		defer server.Close()
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := server.Dial(ctx, network, address)
			return slow{conn}, err
		}
		cfg := aws.Config{
			Region: "eu-central-1", BaseEndpoint: aws.String("http://ec2.test"), Credentials: role.Credentials(metadata("eu-central-1")),
			HTTPClient: role.Unhurried(&http.Client{Transport: &http.Transport{DialContext: dial}}),
			Retryer:    func() aws.Retryer { return aws.NopRetryer{} },
		}
		answer, err := ec2.NewFromConfig(cfg).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{"i-1"}})
		if err != nil || len(answer.Reservations) != 1 {
			t.Errorf("the answer is %+v: %v", answer, err)
		}
	})
}

// metadata is a metadata service in a region.
func metadata(region string) role.Metadata { return querytest.MetadataOf("i-1", region).Document }

// refusing is an AWS that refuses everything, and keeps the hosts that were asked.
type refusing struct {
	mu    sync.Mutex
	hosts map[string]bool
}

// Do implements aws.HTTPClient.
func (r *refusing) Do(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts[request.URL.Host] = true
	const body = "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error></Errors></Response>"
	return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: request}, nil
}

// asked lists the hosts that all parts of nth and nth-queue ask which speak to AWS.
func asked(t *testing.T, region string) []string {
	t.Helper()
	account, err := metadata(region).Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nobody := &refusing{hosts: map[string]bool{}}
	account.HTTPClient = nobody
	if _, _, err := nthec2.New(nthec2.Options{AWS: account}).Look(t.Context(), "i-1"); !errors.Is(err, nthec2.ErrRefused) {
		t.Errorf("EC2 says %v", err)
	}
	// That is in the words of EC2; of the others, only the host is of interest.
	_, _ = asg.NewHookClient(asg.HookClientOptions{AWS: account}, asg.Settings{}).Rights("workers")[0].Allowed(t.Context())
	_, _, _ = sqs.New(sqs.Options{AWS: account, URL: "/1/queue"}).Setup(t.Context())
	return slices.Sorted(maps.Keys(nobody.hosts))
}

func TestConfig_TakesEndpointsFromTheEnvironment(t *testing.T) {
	for name, row := range map[string]struct {
		environment map[string]string
		want        []string
	}{
		"in China": {
			map[string]string{"region": "cn-north-1"},
			[]string{"autoscaling.cn-north-1.amazonaws.com.cn", "ec2.cn-north-1.amazonaws.com.cn", "sqs.cn-north-1.amazonaws.com.cn"},
		},
		"FIPS": {
			map[string]string{"AWS_USE_FIPS_ENDPOINT": "true"},
			[]string{"autoscaling-fips.us-east-1.amazonaws.com", "ec2-fips.us-east-1.amazonaws.com", "sqs-fips.us-east-1.amazonaws.com"},
		},
		"dual-stack": {
			map[string]string{"AWS_USE_DUALSTACK_ENDPOINT": "true"},
			[]string{"autoscaling.us-east-1.api.aws", "ec2.us-east-1.api.aws", "sqs.us-east-1.api.aws"},
		},
		"both": {
			map[string]string{"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
			[]string{"autoscaling-fips.us-east-1.api.aws", "ec2-fips.us-east-1.api.aws", "sqs-fips.us-east-1.api.aws"},
		},
		"an endpoint for all": {
			map[string]string{"AWS_ENDPOINT_URL": "https://aws.example"}, []string{"aws.example"},
		},
		"an endpoint for one": {
			map[string]string{"AWS_ENDPOINT_URL_EC2": "https://ec2.example"},
			[]string{"autoscaling.us-east-1.amazonaws.com", "ec2.example", "sqs.us-east-1.amazonaws.com"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range row.environment {
				t.Setenv(key, value)
			}
			if got := asked(t, cmp.Or(row.environment["region"], "us-east-1")); !slices.Equal(got, row.want) {
				t.Errorf("asked were\n%q, want\n%q", got, row.want)
			}
		})
	}
}

func TestConfig_NamesABadVariable(t *testing.T) {
	t.Setenv("AWS_USE_FIPS_ENDPOINT", "maybe")
	if _, err := metadata("us-east-1").Account(t.Context()); err == nil || !strings.Contains(err.Error(), "AWS_USE_FIPS_ENDPOINT") {
		t.Errorf("it says %v", err)
	}
}

func TestConfig_TrustsTheBundle(t *testing.T) {
	elb := elbtest.New()
	group := elb.AddGroup("web", elbtest.Group{})
	server := httptest.NewUnstartedServer(elb)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // which would tell of whoever does not trust it
	server.StartTLS()
	t.Cleanup(server.Close)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(bundle, text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2", server.URL)
	check := func() (bool, error) {
		region := metadata("us-east-1")
		found, err := targets.New(targets.Options{Groups: []string{group}, AWS: region.Account, Metadata: region}).Check(t.Context())
		for _, f := range found {
			err = errors.Join(err, f.Err)
		}
		return len(found) > 0, err
	}
	if _, err := check(); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without it: %v", err)
	}
	t.Setenv("AWS_CA_BUNDLE", bundle)
	if _, err := check(); err != nil {
		t.Errorf("with it: %v", err)
	}
	t.Setenv("AWS_CA_BUNDLE", filepath.Join(t.TempDir(), "absent"))
	if _, err := check(); err == nil || !strings.Contains(err.Error(), "AWS_CA_BUNDLE") {
		t.Errorf("where it is not there: %v", err)
	}
	if err := os.WriteFile(bundle, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CA_BUNDLE", bundle)
	if _, err := check(); err == nil || !strings.Contains(err.Error(), "there is no certificate in "+bundle) {
		t.Errorf("where it is none: %v", err)
	}
}

// answering is an HTTP client whose answers have those Dates, each by how much it is ahead of the machine's clock.
type answering struct{ ahead []time.Duration }

// Do implements aws.HTTPClient.
func (a *answering) Do(*http.Request) (*http.Response, error) {
	date := time.Now().Add(a.ahead[0]).UTC().Format(http.TimeFormat)
	a.ahead = a.ahead[1:]
	return &http.Response{Header: http.Header{"Date": {date}}}, nil
}

func TestClock_BelievesTwoAnswersOfAWSThatAgree(t *testing.T) {
	t.Parallel()
	const wrong, right, later = -10 * time.Minute, 10 * time.Minute, 20 * time.Minute
	for name, row := range map[string]struct {
		answers []time.Duration
		want    time.Duration
	}{
		"none":                     {nil, 0},
		"ahead":                    {[]time.Duration{right, right}, right},
		"behind":                   {[]time.Duration{wrong, wrong}, wrong},
		"one alone":                {[]time.Duration{right}, 0},
		"one wrong among right":    {[]time.Duration{right, right, wrong}, right},
		"every other one is wrong": {[]time.Duration{right, right, wrong, right, wrong}, right},
		"the clock was set":        {[]time.Duration{right, right, later, later}, later},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clock role.Clock
			client := clock.Watch(&answering{row.answers})
			for range row.answers {
				if _, err := client.Do(nil); err != nil {
					t.Fatal(err)
				}
			}
			if off := time.Until(clock.Now()) - row.want; off.Abs() > time.Minute {
				t.Errorf("the clock is off by %s", off)
			}
		})
	}
}
