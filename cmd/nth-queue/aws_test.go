package main_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	nthqueue "github.com/nth-project/nth/cmd/nth-queue"
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
	found, err := nthqueue.AWSConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	address := server.URL + "/123456789012/interruptions"
	_, _ = sqs.NewFromConfig(found).ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &address}) // It is refused.
	if got := <-asked; !strings.Contains(got, "ReceiveMessage") {
		t.Errorf("asked was for %q", got)
	}
}

func TestTheRegionIsReadFromEveryFormOfAQueuesAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions":                     "eu-central-1",
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789012/interruptions":                    "cn-north-1",
		"https://sqs.us-gov-west-1.amazonaws.com/123456789012/interruptions":                    "us-gov-west-1",
		"https://sqs.us-iso-east-1.c2s.ic.gov/123456789012/interruptions":                       "us-iso-east-1",
		"https://sqs.us-isob-east-1.sc2s.sgov.gov/123456789012/interruptions":                   "us-isob-east-1",
		"https://sqs.eu-isoe-west-1.cloud.adc-e.uk/123456789012/interruptions":                  "eu-isoe-west-1",
		"https://sqs.us-isof-south-1.csp.hci.ic.gov/123456789012/interruptions":                 "us-isof-south-1",
		"https://sqs.eusc-de-east-1.amazonaws.eu/123456789012/interruptions":                    "eusc-de-east-1",
		"https://sqs-fips.us-east-1.amazonaws.com/123456789012/interruptions":                   "us-east-1",
		"https://sqs.us-east-1.api.aws/123456789012/interruptions":                              "us-east-1",
		"https://us-west-2.queue.amazonaws.com/123456789012/interruptions":                      "us-west-2",
		"https://vpce-0a1b2c3d4e5f-abcdefgh.sqs.eu-central-1.vpce.amazonaws.com/123456789012/i": "eu-central-1",
		"http://127.0.0.1:4566/000000000000/interruptions":                                      "",
		"https://sqs.example.com/123456789012/interruptions":                                    "",
		"https://proxy.eu-central-1.example.com/123456789012/interruptions":                     "",
		"://": "",
	} {
		if got := nthqueue.RegionOf(address); got != want {
			t.Errorf("the region of %s is %q, want %q", address, got, want)
		}
	}
}
