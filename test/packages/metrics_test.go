package packages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/host"
)

// The unit, which makes the file system read-only, lets nth write where node_exporter looks.
func TestTheFileOfMetricsCanBeWrittenWhereTheManualSays(t *testing.T) {
	t.Parallel()
	h := bareHost(t, "trixie")
	configure := func(dir string) {
		h.Run(t, "mkdir", "-p", dir)
		h.Configure(t, fmt.Sprintf("[metrics]\ntextfile = \"%s/nth.prom\"\n", dir))
	}
	read := func(dir string) {
		t.Helper()
		file := dir + "/nth.prom"
		h.Await(t, file+" is there", func() bool { return h.Try(t, "test", "-e", file).Status == 0 })
		if mode := h.Run(t, "stat", "--format=%a %U", file); mode != "644 root" {
			t.Errorf("%s is %s, want 644 root", file, mode)
		}
		if text := h.Run(t, "cat", file); !strings.Contains(text, "nth_healthy 1") {
			t.Errorf("%s does not hold metrics:\n%s", file, text)
		}
	}
	configure("/var/lib/node_exporter")
	h.Install(t, host.Older)
	h.Run(t, "systemctl", "start", "nth")
	read("/var/lib/node_exporter")
	configure("/var/lib/prometheus/node-exporter")
	h.Run(t, "systemctl", "restart", "nth")
	read("/var/lib/prometheus/node-exporter")

	configure("/srv/textfile")
	h.Run(t, "systemctl", "restart", "nth")
	if said := h.WaitLogged(t, systemd.MetricsTrouble).Message(); !strings.Contains(said, "/srv/textfile/nth.prom: read-only file system") {
		t.Errorf("of a directory that it cannot write to, nth says %q", said)
	}
	h.Write(t, "/etc/systemd/system/nth.service.d/50-metrics.conf", "[Service]\nReadWritePaths=/srv/textfile\n")
	h.Run(t, "systemctl", "daemon-reload")
	h.Run(t, "systemctl", "restart", "nth")
	read("/srv/textfile")
}
