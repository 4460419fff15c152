package faults_test

import (
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

// hasty lets a notice that is missing count as withdrawn soon.
const hasty = "[imds]\nwithdrawn_after = \"100ms\"\n"

func TestADrainGoesOnWithoutMemoryAndSaysSo(t *testing.T) {
	t.Parallel()
	for name, disk := range map[string]struct{ prepare, env string }{
		"read-only":                   {prepare: `mkdir -p "$state" && mount -t tmpfs -o ro none "$state"`},
		"full after the first record": {prepare: `mkdir -p "$state" && mount -t tmpfs -o size=4k none "$state"`},
		"no directory":                {env: "STATE_DIRECTORY=/dev/null/nth"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, hasty)
			s.options.Prepare, s.options.Env = disk.prepare, []string{disk.env}
			s.machine.Configure(t, s.options)
			s.node.AddPods(t, "work", 5)
			s.watch(t)
			s.imds.SetSpot("terminate", twoMinutes())
			s.waitDrained(t)
			if e := s.nth.WaitLog(t, systemd.StateTrouble); e.Level != "error" {
				t.Errorf("nth said %q at the level %s, want error", e.Message, e.Level)
			}

			// The node itself remembers whose cordon it is.
			s.nth.Kill()
			s.imds.ClearSpot()
			s.start(t)
			s.node.WaitUncordoned(t)
			s.nth.Stop(t)
			if claim, left := s.node.Object(t).Annotations[cordonAnnotation]; left {
				t.Errorf("nth's claim is left on the node: %s", claim)
			}
		})
	}
}
