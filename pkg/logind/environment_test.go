package logind_test

import (
	"slices"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/nth-project/nth/pkg/logind"
)

// A manager is on the bus what systemd is, as far as one service goes.
type manager struct{ properties map[string]dbus.Variant }

func (m manager) get(_, name string) (dbus.Variant, *dbus.Error) {
	v, found := m.properties[name]
	if !found {
		return v, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", nil)
	}
	return v, nil
}

// manage brings systemd onto the bus.
func manage(t *testing.T, bus *systemBus, units map[string]manager) {
	t.Helper()
	conn := connect(t, bus)
	t.Cleanup(func() { _ = conn.Close() })
	for path, m := range units {
		methods := map[string]any{"Get": m.get}
		if err := conn.ExportMethodTable(methods, dbus.ObjectPath("/org/freedesktop/systemd1/unit/"+path), "org.freedesktop.DBus.Properties"); err != nil {
			t.Fatal(err)
		}
	}
	if reply, err := conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("becoming systemd: %v, %v", reply, err)
	}
}

type environmentFile struct {
	Path    string
	Ignored bool
}

func TestSystemdTellsTheEnvironmentOfAService(t *testing.T) {
	bus := newBus(t)
	bus.start(t)
	absent := manager{map[string]dbus.Variant{"LoadState": dbus.MakeVariant("not-found")}}
	manage(t, bus, map[string]manager{
		"kubelet_2eservice": absent, "none_2eservice": absent,
		"snap_2ekubelet_2deks_2edaemon_2eservice": {map[string]dbus.Variant{
			"LoadState":        dbus.MakeVariant("loaded"),
			"Environment":      dbus.MakeVariant([]string{"HTTPS_PROXY=http://proxy.test:3128", "A=b c"}),
			"EnvironmentFiles": dbus.MakeVariant([]environmentFile{{"/etc/environment", true}, {"/etc/eks/kubelet/environment", false}}),
		}},
	})
	host := logind.Host("")
	service, variables, files, err := host.Environment(t.Context(), "kubelet.service", "snap.kubelet-eks.daemon.service")
	if err != nil || service != "snap.kubelet-eks.daemon.service" ||
		!slices.Equal(variables, []string{"HTTPS_PROXY=http://proxy.test:3128", "A=b c"}) ||
		!slices.Equal(files, []string{"/etc/environment", "/etc/eks/kubelet/environment"}) {
		t.Errorf("of %s it tells %q and %q, %v", service, variables, files, err)
	}
	if service, variables, files, err := host.Environment(t.Context(), "none.service"); service != "" || len(variables)+len(files) != 0 || err != nil {
		t.Errorf("of a service that is not there: %q, %q and %q, %v", service, variables, files, err)
	}
	bus.stop()
	if _, _, _, err := host.Environment(t.Context(), "kubelet.service"); err == nil {
		t.Errorf("without systemd: %v", err)
	}
}

func TestSystemdTellsWhatAServiceKeepsForItsNextProcess(t *testing.T) {
	bus := newBus(t)
	bus.start(t)
	service := func(state string, files uint32) manager {
		return manager{map[string]dbus.Variant{"LoadState": dbus.MakeVariant(state), "FileDescriptorStoreMax": dbus.MakeVariant(files)}}
	}
	manage(t, bus, map[string]manager{
		"nth_2eservice": service("loaded", 64), "dropped_2ein_2eservice": service("loaded", 0), "none_2eservice": service("not-found", 0),
	})
	host := logind.Host("")
	for name, want := range map[string]uint32{"nth.service": 64, "dropped.in.service": 0} {
		if got, err := host.ServiceKeeps(t.Context(), name); got != want || err != nil {
			t.Errorf("%s keeps %d, %v, want %d", name, got, err, want)
		}
	}
	if _, err := host.ServiceKeeps(t.Context(), "none.service"); err == nil {
		t.Error("a service that is not there keeps something")
	}
	bus.stop()
	if _, err := host.ServiceKeeps(t.Context(), "nth.service"); err == nil {
		t.Error("without systemd something is kept")
	}
}
