package main_test

import (
	"slices"
	"testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
)

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
