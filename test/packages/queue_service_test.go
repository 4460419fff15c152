package packages

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

// textfiles is what docs/metrics.md tells the administrator of a host with node_exporter to write.
const textfiles = `[Service]
SupplementaryGroups=textfiles
ReadWritePaths=/var/lib/node_exporter
`

// watched shortens the watchdog: what is judged is that the service is watched, not for how long.
const watched = `[Service]
WatchdogSec=3s
TimeoutAbortSec=1s
`

func TestNTHQueueWritesItsFileOfMetricsAndIsStartedAgainWhenItHangs(t *testing.T) {
	onEverySuite(t, func(t *testing.T, suite string) {
		messages := sqstest.New()
		t.Cleanup(messages.Close)
		aws := httptest.NewServer(messages)
		t.Cleanup(aws.Close)
		m := installQueue(t, suite)
		m.Run(t, "groupadd", "--system", "textfiles")
		m.Run(t, "install", "--directory", "--mode=775", "--group=textfiles", "/var/lib/node_exporter")
		m.Write(t, "/etc/systemd/system/nth-queue.service.d/50-metrics.conf", textfiles)
		m.Write(t, "/etc/systemd/system/nth-queue.service.d/60-watched.conf", watched)
		configureQueue(t, m, messages.URL(), aws.URL, "[metrics]\ntextfile = \"/var/lib/node_exporter/nth-queue.prom\"\n")
		healthy := func() bool {
			return strings.Contains(m.Try(t, "cat", "/var/lib/node_exporter/nth-queue.prom").Stdout, "\nnth_healthy 1\n")
		}

		m.Run(t, "systemctl", "start", "nth-queue")
		m.Await(t, "there are metrics", healthy)
		if mode := m.Run(t, "stat", "--format=%a", "/var/lib/node_exporter/nth-queue.prom"); mode != "644" {
			t.Errorf("the file has the mode %s, want 644", mode)
		}
		before := m.Hang(t, "nth-queue")
		m.Await(t, "systemd has started nth-queue again", func() bool { return m.Property(t, "nth-queue", "NRestarts") == "1" })
		m.Await(t, "it reads the queue", func() bool {
			return strings.HasPrefix(m.Property(t, "nth-queue", "StatusText"), "reading the queue")
		})
		if after := m.Property(t, "nth-queue", "MainPID"); after == before || after == "0" {
			t.Errorf("the process is %s, and was %s before", after, before)
		}
		said := m.Run(t, "journalctl", "--boot", "--unit=nth-queue", "--output=cat")
		if !strings.Contains(said, "Failed with result 'watchdog'") {
			t.Errorf("the journal does not tell of the watchdog:\n%s", said)
		}
		m.Run(t, "rm", "/var/lib/node_exporter/nth-queue.prom")
		m.Await(t, "there are metrics again", healthy)
	})
}
