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
		{"Resolve", kube.Resolve, []time.Duration{2 * 5 * time.Second}}, // two silent nameservers
		{"Dial", kube.Dial, []time.Duration{time.Second, 2 * time.Second}},
		{"ReadMost", kube.ReadMost, []time.Duration{kube.Resolve, kube.Dial, kube.TLS}},
		{"Write", kube.Write, []time.Duration{kube.Webhook}},
		{"Write, new connection", kube.Write, []time.Duration{kube.Resolve, kube.Dial, kube.TLS, kube.WebhookUsual}},
		{"WritePressed", kube.WritePressed, []time.Duration{kube.WebhookUsual}},
		{"WatchEnd", kube.WatchEnd, []time.Duration{kube.Watch}},
		{"Idle", kube.Idle, []time.Duration{kube.WarmUp, kube.WarmUp / 10, kube.ReadMost}},
		{"Credential", kube.Credential, []time.Duration{kube.Token, kube.Plugin, kube.PluginChild}},
		{"File", kube.File, []time.Duration{kube.Settings}},
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

func TestReadLimit_DoublesWithEachTimeout(t *testing.T) {
	for timeouts, want := range map[int]time.Duration{-1: kube.Read, 0: kube.Read, 1: 2 * kube.Read, 2: kube.ReadMost, 1 << 40: kube.ReadMost} {
		if got := kube.ReadLimit(timeouts); got != want {
			t.Errorf("after %d time-outs the limit is %s, not %s", timeouts, got, want)
		}
	}
}
