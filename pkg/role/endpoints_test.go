package role_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/ekstoken"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/instances"
	"github.com/nth-project/nth/pkg/instances/ec2test"
	"github.com/nth-project/nth/pkg/lifecycle"
	"github.com/nth-project/nth/pkg/queue"
	"github.com/nth-project/nth/pkg/reservation"
	"github.com/nth-project/nth/pkg/role"
	"github.com/nth-project/nth/pkg/targets"
	"github.com/nth-project/nth/pkg/targets/elbtest"
)

// metadata is a metadata service in a region.
func metadata(region string) role.Metadata {
	documents := map[string]string{
		"instance-id": "i-1", "placement/region": region, "iam/security-credentials/": "nodes",
		"iam/security-credentials/nodes": `{"Code": "Success", "AccessKeyId": "ASIAREHEARSALONLY000", "SecretAccessKey": "secret", "Token": "token", "Expiration": "2099-01-01T00:00:00Z"}`,
	}
	return func(_ context.Context, path string) ([]byte, error) {
		body, found := documents[path]
		if !found {
			return nil, fs.ErrNotExist
		}
		return []byte(body), nil
	}
}

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

// asked lists the hosts that all parts of nth and nth-queue ask which speak to AWS, and to which a token for EKS is addressed.
func asked(t *testing.T, region string) []string {
	t.Helper()
	account, err := role.Config(t.Context(), role.Options{Metadata: metadata(region)})
	if err != nil {
		t.Fatal(err)
	}
	nobody := &refusing{hosts: map[string]bool{}}
	account.HTTPClient = nobody
	if _, _, err := instances.New(instances.Options{AWS: account}).Look(t.Context(), "i-1"); !role.Refused(err) {
		t.Errorf("EC2 says %v", err)
	}
	// That is in the words of EC2; of the others, only the host is of interest.
	_, _ = lifecycle.NewTold(lifecycle.ToldOptions{AWS: account}, lifecycle.Settings{}).May(t.Context(), lifecycle.ToldPermissions(lifecycle.Settings{})[0], "workers")
	_, _, _ = queue.New(queue.Options{AWS: account, URL: "https://sqs.example/1/queue"}).Check(t.Context())
	for _, source := range []*ekstoken.Source{ekstoken.Of(account), ekstoken.New(metadata(region), "")} {
		token, _, err := source.Token(t.Context(), "production", "")
		if err != nil {
			t.Fatal(err)
		}
		text, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "k8s-aws-v1."))
		if err != nil {
			t.Fatal(err)
		}
		request, err := url.Parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		nobody.hosts[request.Host] = true
	}
	return slices.Sorted(maps.Keys(nobody.hosts))
}

func TestEachServiceIsAskedWhereItsPartitionHasIt(t *testing.T) {
	for partition, row := range map[string]struct{ region, domain string }{
		"aws":        {"eu-central-1", "amazonaws.com"},
		"aws-cn":     {"cn-north-1", "amazonaws.com.cn"},
		"aws-us-gov": {"us-gov-west-1", "amazonaws.com"},
		"aws-iso":    {"us-iso-east-1", "c2s.ic.gov"},
		"aws-iso-b":  {"us-isob-east-1", "sc2s.sgov.gov"},
		"aws-iso-e":  {"eu-isoe-west-1", "cloud.adc-e.uk"},
		"aws-iso-f":  {"us-isof-south-1", "csp.hci.ic.gov"},
		"aws-eusc":   {"eusc-de-east-1", "amazonaws.eu"},
		"a new one":  {"eu-farthest-7", "amazonaws.com"},
	} {
		t.Run(partition, func(t *testing.T) {
			var want []string
			for _, service := range []string{"autoscaling", "ec2", "sqs", "sts"} {
				want = append(want, service+"."+row.region+"."+row.domain)
			}
			if got := asked(t, row.region); !slices.Equal(got, want) {
				t.Errorf("asked were\n%q, want\n%q", got, want)
			}
		})
	}
}

func TestTheEnvironmentSaysWhichEndpointsAreAsked(t *testing.T) {
	for name, row := range map[string]struct {
		environment map[string]string
		want        []string
	}{
		"FIPS": {
			map[string]string{"AWS_USE_FIPS_ENDPOINT": "true"},
			[]string{"autoscaling-fips.us-east-1.amazonaws.com", "ec2-fips.us-east-1.amazonaws.com", "sqs-fips.us-east-1.amazonaws.com", "sts-fips.us-east-1.amazonaws.com"},
		},
		"dual-stack": {
			map[string]string{"AWS_USE_DUALSTACK_ENDPOINT": "true"},
			[]string{"autoscaling.us-east-1.api.aws", "ec2.us-east-1.api.aws", "sqs.us-east-1.api.aws", "sts.us-east-1.api.aws"},
		},
		"both": {
			map[string]string{"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
			[]string{"autoscaling-fips.us-east-1.api.aws", "ec2-fips.us-east-1.api.aws", "sqs-fips.us-east-1.api.aws", "sts-fips.us-east-1.api.aws"},
		},
		"an endpoint for all, which no token is for": {
			map[string]string{"AWS_ENDPOINT_URL": "https://aws.example"}, []string{"aws.example", "sts.us-east-1.amazonaws.com"},
		},
		"an endpoint for one": {
			map[string]string{"AWS_ENDPOINT_URL_EC2": "https://ec2.example", "AWS_ENDPOINT_URL_STS": "https://sts.example"},
			[]string{"autoscaling.us-east-1.amazonaws.com", "ec2.example", "sqs.us-east-1.amazonaws.com", "sts.us-east-1.amazonaws.com"},
		},
		"endpoints that are to be ignored": {
			map[string]string{"AWS_ENDPOINT_URL_EC2": "https://ec2.example", "AWS_ENDPOINT_URL": "https://aws.example", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
			[]string{"autoscaling.us-east-1.amazonaws.com", "ec2.us-east-1.amazonaws.com", "sqs.us-east-1.amazonaws.com", "sts.us-east-1.amazonaws.com"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range row.environment {
				t.Setenv(key, value)
			}
			if got := asked(t, "us-east-1"); !slices.Equal(got, row.want) {
				t.Errorf("asked were\n%q, want\n%q", got, row.want)
			}
		})
	}
}

func TestAnEndpointOfTheSettingsGoesBeforeTheOneForAll(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "https://aws.example")
	cfg, err := role.Config(t.Context(), role.Options{Metadata: metadata("us-east-1"), Endpoint: "https://mine.example/"})
	if err != nil || aws.ToString(cfg.BaseEndpoint) != "https://mine.example" {
		t.Errorf("asked would be %q (%v)", aws.ToString(cfg.BaseEndpoint), err)
	}
}

func TestAWordInTheEnvironmentThatIsNoneIsNamed(t *testing.T) {
	t.Setenv("AWS_USE_FIPS_ENDPOINT", "maybe")
	if _, err := role.Config(t.Context(), role.Options{Metadata: metadata("us-east-1")}); err == nil || !strings.Contains(err.Error(), "AWS_USE_FIPS_ENDPOINT") {
		t.Errorf("it says %v", err)
	}
}

// encrypted serves with a certificate that is trusted by whoever has the bundle.
func encrypted(t *testing.T, service http.Handler) (server *httptest.Server, bundle string) {
	t.Helper()
	server = httptest.NewUnstartedServer(service)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // which would tell of whoever does not trust it
	server.StartTLS()
	t.Cleanup(server.Close)
	bundle = filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(bundle, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return server, bundle
}

func TestLoadBalancersAreAskedForWhereAndAsTheEnvironmentSays(t *testing.T) {
	elb := elbtest.New()
	group := elb.AddGroup("web", elbtest.Group{})
	server, bundle := encrypted(t, elb)
	t.Setenv("AWS_CA_BUNDLE", bundle)
	for _, variable := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, server.URL)
			found, err := targets.New(targets.Options{Groups: []string{group}, Metadata: metadata("eu-central-1")}).Check(t.Context())
			if err != nil || len(found) != 1 || found[0].Err != nil {
				t.Errorf("found is %v, %v", found, err)
			}
		})
	}
}

func TestWhoIsTrustedIsInTheBundle(t *testing.T) {
	ec2 := &ec2test.Service{}
	ec2.Add(ec2test.Instance{ID: "i-1", State: "running"})
	server, bundle := encrypted(t, ec2)
	check := func() (event.Event, error) {
		return reservation.Check(t.Context(), reservation.Options{Endpoint: server.URL, Metadata: metadata("us-east-1")})
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
