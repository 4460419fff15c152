package daemon_test

import (
	"testing"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
)

func TestHooksAreLookedAfterOnlyWhereTerminationsAreDrainedFor(t *testing.T) {
	for _, row := range []struct {
		action   string
		complete bool
		want     bool
	}{
		{"drain", true, true}, {"drain", false, false}, {"cordon", true, false}, {"notify", true, false}, {"ignore", true, false},
	} {
		c := config.Default().Events.ASGTermination
		c.Action, c.CompleteHook, c.Hooks = row.action, row.complete, []string{"a"}
		got := daemon.Hooks(c)
		if got.Complete != row.want || len(got.Hooks) != 1 {
			t.Errorf("%s, %t: %+v", row.action, row.complete, got)
		}
	}
}
