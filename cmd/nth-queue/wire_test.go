package main_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
)

// What the SDK finds has no HTTP client of its own.
func TestAWSIsAskedWithWhatTheSDKFinds(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("X-Amz-Target")
		http.Error(w, "{}", http.StatusForbidden)
	}))
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE0000001")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	cfg := config.DefaultQueue()
	t.Setenv("AWS_REGION", "eu-central-1")
	t.Setenv("AWS_ENDPOINT_URL", server.URL)
	found, err := queue.AWSConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	address := server.URL + "/123456789012/interruptions"
	_, _ = sqs.NewFromConfig(found).ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &address}) // It is refused.
	if got := <-asked; !strings.Contains(got, "ReceiveMessage") {
		t.Errorf("asked was for %q", got)
	}
}

// A process that is given the public URL, and one with that of a VPC endpoint, must not both lead.
func TestLease_IsOneForAllFormsOfAQueuesURL(t *testing.T) {
	t.Parallel()
	const region = "eu-central-1"
	lease := queue.LeaseOf("https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions", region)
	for url, same := range map[string]bool{
		"https://eu-central-1.queue.amazonaws.com/123456789012/interruptions":               true,
		"https://vpce-0a-1b.sqs.eu-central-1.vpce.amazonaws.com/123456789012/interruptions": true,
		"https://sqs-fips.eu-central-1.amazonaws.com/123456789012/interruptions/":           true,
		"https://sqs.internal.example/123456789012/interruptions":                           true,
		"https://sqs.eu-west-1.amazonaws.com/123456789012/interruptions":                    false,
		"https://sqs.eu-central-1.amazonaws.com/123456789012/others":                        false,
		"https://sqs.eu-central-1.amazonaws.com/interruptions":                              false,
	} {
		if got := queue.LeaseOf(url, region); (got == lease) != same {
			t.Errorf("the Lease of %s is %s, and that of the public URL %s", url, got, lease)
		}
	}
}

func TestTheHooksOfBothTransitionsAreThoseOfTheSettings(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultQueue()
	cfg.Events.ASGTermination.Hooks, cfg.Fleet.LaunchHooks, cfg.Events.ASGTermination.OnIncomplete = []string{"drain"}, []string{"ready"}, "abandon"
	got := queue.HookSettings(cfg)
	if !got.Complete || !got.Abandon || !slices.Equal(got.Hooks, []string{"drain"}) || !slices.Equal(got.LaunchHooks, []string{"ready"}) {
		t.Errorf("%+v", got)
	}
}
