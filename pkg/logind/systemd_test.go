package logind_test

import (
	"context"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
)

const ourTarget = "nth-before-drain.target"

func TestTarget_IsStartedWhenItsJobIsDone(t *testing.T) {
	for name, c := range map[string]struct {
		refusal *dbus.Error
		hangs   bool
		want    string // the error; "" if there is none
	}{
		"its units have run": {},
		"systemd refuses": {
			refusal: dbus.NewError(systemdName+".TransactionIsDestructive", []any{"Transaction is destructive."}),
			want:    "starting " + ourTarget + ": asking systemd for StartUnit: Transaction is destructive.",
		},
		"a unit takes for ever": {hangs: true, want: "starting " + ourTarget + ": context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			bus := newBus(t)
			bus.start(t)
			systemd := manage(t, bus)
			with(systemd, func() bool { systemd.refusal, systemd.working = c.refusal, c.refusal == nil; return true })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- bus.host().StartTarget(ctx, ourTarget) }()
			new(rig).await(t, "systemd is asked", func() bool { return systemd.wasAsked(ourTarget + " replace") })
			if c.hangs {
				cancel()
			} else {
				with(systemd, func() bool { systemd.working = false; return true })
			}
			err := next(t, done)
			if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
				t.Errorf("it ended with %v, want %q", err, c.want)
			}
		})
	}
}

func TestTarget_WithoutSystemdIsAnError(t *testing.T) {
	if err := newBus(t).host().StartTarget(t.Context(), ourTarget); err == nil || !strings.Contains(err.Error(), "starting "+ourTarget) {
		t.Errorf("it ended with %v", err)
	}
}
