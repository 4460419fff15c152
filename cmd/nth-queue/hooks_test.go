package main_test

import (
	"slices"
	"testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
)

func TestAQueueIsKnownByItsARNWhateverTheFormOfItsURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions":                 ":sqs:eu-central-1:123456789012:interruptions",
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789012/interruptions":                ":sqs:cn-north-1:123456789012:interruptions",
		"https://eu-central-1.queue.amazonaws.com/123456789012/interruptions":               ":sqs:eu-central-1:123456789012:interruptions",
		"https://vpce-0a-1b.sqs.eu-central-1.vpce.amazonaws.com/123456789012/interruptions": ":sqs:eu-central-1:123456789012:interruptions",
		"https://localhost:4566/123456789012/interruptions":                                 ":sqs:us-east-1:123456789012:interruptions",
		"https://sqs.eu-central-1.amazonaws.com/interruptions":                              "",
	} {
		if got := queue.ResourceOf(url, "us-east-1"); got != want {
			t.Errorf("%s is %q, want %q", url, got, want)
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
