package kube_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/kube"
)

func TestLimits_OuterExceedsTheSumOfInner(t *testing.T) {
	for _, limit := range []struct {
		name  string
		outer time.Duration
		inner []time.Duration
	}{
		{"Dial", kube.Dial, []time.Duration{2 * 5 * time.Second}}, // two silent nameservers
		{"Write", kube.Write, []time.Duration{kube.Webhook}},
		{"Write, new connection", kube.Write, []time.Duration{kube.Dial, kube.TLS, kube.WebhookUsual}},
		{"WritePressed", kube.WritePressed, []time.Duration{kube.WebhookUsual}},
		{"WatchEnd", kube.WatchEnd, []time.Duration{kube.Watch}},
		{"Idle", kube.Idle, []time.Duration{kube.WarmUp, kube.WarmUp / 10, kube.Read}},
	} {
		var sum time.Duration
		for _, inner := range limit.inner {
			sum += inner
		}
		if limit.outer <= sum {
			t.Errorf("%s is %s, and what it contains adds up to %s", limit.name, limit.outer, sum)
		}
	}
}
