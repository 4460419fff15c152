package logind_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
)

const ourTarget = "nth-before-drain.target"

func TestTarget_IsStartedWhenAllThatItWantsIs(t *testing.T) {
	target := func(wants, requires []string) map[string]any {
		return map[string]any{"Wants": wants, "Requires": requires}
	}
	for name, c := range map[string]struct {
		target  map[string]any
		refusal *dbus.Error
		hangs   bool
		want    string // the error; "" if there is none
	}{
		"it wants nothing":       {target: target([]string{}, []string{})},
		"all have run":           {target: target([]string{"done"}, []string{"done"})},
		"units have failed":      {target: target([]string{"tell", "save", "done"}, []string{}), want: ourTarget + ": failed: save, tell"},
		"what it requires fails": {target: target([]string{"done"}, []string{"tell"}), want: ourTarget + ": failed: tell"},
		"systemd refuses": {
			target:  target([]string{}, []string{}),
			refusal: dbus.NewError(systemdName+".TransactionIsDestructive", []any{"Transaction is destructive."}),
			want:    "starting " + ourTarget + ": asking systemd for StartUnit: Transaction is destructive.",
		},
		"a unit takes for ever": {target: target([]string{}, []string{}), hangs: true, want: "starting " + ourTarget + ": context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			bus := newBus(t)
			bus.start(t)
			systemd := manage(t, bus, map[string]map[string]any{
				ourTarget: c.target,
				"save":    {"ActiveState": "failed"}, "tell": {"ActiveState": "failed"}, "done": {"ActiveState": "inactive"},
			})
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

// systemd leaves a message that it has read together with the end of the authentication unread until the next one comes.
func TestSystemd_ThatOverlooksTheFirstMessageIsAsked(t *testing.T) {
	bus := newBus(t)
	socket := filepath.Join(bus.dir, "run/systemd/private")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	listen(t, socket, func(conn *net.UnixConn) {
		overlooked := false
		answer(conn, map[string]any{"Get": dbus.MakeVariant("stopping")}, func(bool) bool {
			before := overlooked
			overlooked = true
			return before
		})
	})
	if !bus.host().GoingDown(t.Context()) {
		t.Error("the host is not going down")
	}
}
