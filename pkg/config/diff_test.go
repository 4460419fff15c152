package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/config"
)

func TestDiffNamesWhatDiffersAndNothingElse(t *testing.T) {
	grace := time.Minute
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   []string
	}{
		"nothing":          {func(*config.Config) {}, nil},
		"the top":          {func(c *config.Config) { c.DryRun = true }, []string{"dry_run"}},
		"what was empty":   {func(c *config.Config) { c.Drain.PodGracePeriod = &grace }, []string{"drain.pod_grace_period"}},
		"in a table of it": {func(c *config.Config) { c.Events.Shutdown.PowerKey = "logind" }, []string{"events.shutdown.power_key"}},
		"below a setting": {func(c *config.Config) { c.Events.ScheduledMaintenance.Codes["system-reboot"] = "now" },
			[]string{"events.scheduled-maintenance.codes"}},
		"two, in order": {func(c *config.Config) { c.Kubernetes.Heartbeat, c.Log.Level = time.Hour, "debug" },
			[]string{"log.level", "kubernetes.heartbeat"}},
	} {
		t.Run(name, func(t *testing.T) {
			changed := config.Default()
			test.change(&changed)
			if got := config.Diff(config.Default(), changed); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
