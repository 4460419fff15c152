package logind_test

import (
	"slices"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/logind"
)

func TestSystemdTellsTheCredentialsOfAService(t *testing.T) {
	type file struct{ ID, Path string }
	type text struct {
		ID   string
		Data []byte
	}
	loaded := dbus.MakeVariant("loaded")
	bus := newBus(t)
	bus.start(t)
	manage(t, bus, map[string]manager{
		"none_2eservice": {map[string]dbus.Variant{"LoadState": dbus.MakeVariant("not-found")}},
		"old_2eservice":  {map[string]dbus.Variant{"LoadState": loaded}},
		"nth_2eservice": {map[string]dbus.Variant{
			"LoadState": loaded, "NeedDaemonReload": dbus.MakeVariant(true),
			"LoadCredential":          dbus.MakeVariant([]file{{"a", "/etc/a"}, {"b", "b"}}),
			"LoadCredentialEncrypted": dbus.MakeVariant([]file{{"c", "/etc/c"}}),
			"SetCredential":           dbus.MakeVariant([]text{{"a", []byte("x: y\nz")}}),
			"SetCredentialEncrypted":  dbus.MakeVariant([]text{}),
			"ImportCredential":        dbus.MakeVariant([]string{"webhook-*"}),
		}},
	})
	host := logind.Host("")
	want := []string{"LoadCredential=a:/etc/a", "LoadCredential=b:b", "LoadCredentialEncrypted=c:/etc/c", "SetCredential=a:x: y\nz", "ImportCredential=webhook-*"}
	if lines, loaded, stale, err := host.Credentials(t.Context(), "nth.service"); err != nil || !loaded || !stale || !slices.Equal(lines, want) {
		t.Errorf("it tells %q, loaded %t, stale %t, %v; want %q", lines, loaded, stale, err, want)
	}
	if lines, loaded, stale, err := host.Credentials(t.Context(), "old.service"); err != nil || !loaded || stale || len(lines) > 0 {
		t.Errorf("of a systemd that knows no credentials: %q, loaded %t, stale %t, %v", lines, loaded, stale, err)
	}
	if lines, loaded, _, err := host.Credentials(t.Context(), "none.service"); err != nil || loaded || len(lines) > 0 {
		t.Errorf("of a service that is not there: %q, loaded %t, %v", lines, loaded, err)
	}
	bus.stop()
	if _, _, _, err := host.Credentials(t.Context(), "nth.service"); err == nil {
		t.Error("without systemd there is no error")
	}
}
