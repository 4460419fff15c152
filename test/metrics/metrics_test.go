// Package metrics judges nth's metrics as those see them who read them: a real Prometheus, and a real node_exporter with
// its textfile collector, both as Debian has them.
package metrics

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/debian"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// packages have the programs: prometheus, promtool and prometheus-node-exporter.
var packages = []string{"prometheus", "prometheus-node-exporter"}

// somewhere is an address of the loopback network that nobody else has, so that its ports are free.
func somewhere() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254))
}

// shipped is the path of a file of the packages.
func shipped(t *testing.T, name string) string {
	t.Helper()
	top, err := cache.Top()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(top, "packaging", name)
}

// settings make nth serve, and write a file, and take its time.
const settings = `
[metrics]
listen = "%s:9092"
textfile = %q
[drain]
load_balancer_wait = "2s"
`

func TestPrometheusFollowsADrainThroughBothWays(t *testing.T) {
	t.Parallel()
	tree := debian.New(t, packages...)
	address, dir := somewhere(), t.TempDir()
	node := lab.Shared(t).AddNode(t)
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	node.AddDeployment(t, "web", 3)
	nth := daemon.NewMachine(t, daemon.Options{
		Kubeconfig: node.Kubeconfig, IMDS: imds.URL,
		Settings: fmt.Sprintf(settings, address, filepath.Join(dir, "nth.prom")),
	}).Start(t)
	nth.WaitWatching(t, node.Name)
	tree.Start(t, "prometheus-node-exporter", "--web.listen-address="+address+":9100", "--collector.disable-defaults",
		"--collector.textfile", "--collector.textfile.directory="+dir)
	p := startPrometheus(t, tree, "nth", address)

	// Everything is there before anything has happened: counters begin at zero.
	const drains = `nth_actions_total{action="drain", outcome="done"}`
	p.await(t, drains+` == 0 and on (job) up{job="nth"} == 1`)
	p.await(t, drains+` == 0 and on (job) up{job="node"} == 1`)
	p.await(t, `nth_credential_up == 1`)
	p.await(t, `sum(nth_source_up) == 8`)

	imds.SetSpot("terminate", time.Now().Add(2*time.Minute))
	node.WaitEmpty(t)
	nth.WaitLog(t, systemd.Drained)
	for _, job := range []string{"nth", "node"} {
		p.await(t, fmt.Sprintf(`nth_actions_total{action="drain", outcome="done", job=%q} == 1`, job))
		p.await(t, fmt.Sprintf(`nth_pods_evicted_total{job=%q} == 3`, job))
		p.await(t, fmt.Sprintf(`nth_drain_pods{job=%q} == 3 and nth_drain_pods_left == 0 and nth_draining == 0`, job))
		p.await(t, fmt.Sprintf(`nth_events_pending{kind="spot-interruption", job=%q} == 1`, job))
		p.await(t, fmt.Sprintf(`nth_notice_to_cordon_seconds_count{job=%q} == 1`, job))
		p.await(t, fmt.Sprintf(`nth_drain_deadline_remaining_seconds{job=%q} > 60`, job))
		p.await(t, fmt.Sprintf(`nth_event_deadline_timestamp_seconds{job=%q} > time()`, job))
	}
	p.await(t, `max_over_time(nth_draining{job="nth"}[1m]) == 1`)
	p.await(t, `ALERTS{alertname="NthInterruptionPending", alertstate="firing", kind="spot-interruption"}`)
	for _, job := range []string{"nth", "node"} {
		p.await(t, fmt.Sprintf(`nth_drain_forecast_seconds{job=%q} == 0 and nth_drain_forecast_pods_cut == 0`, job)) // The node is empty.
	}
	judgeDashboard(t, p)
	judgeRules(t, p)
	nth.Stop(t)
}

func TestTheAlertsAreRightAndSayWhatTheyShould(t *testing.T) {
	t.Parallel()
	promtool := debian.New(t, packages...).Program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", shipped(t, "prometheus/nth.rules.yml"), shipped(t, "prometheus/nth-queue.rules.yml")},
		{"test", "rules", shipped(t, "prometheus/nth.rules.test.yml"), shipped(t, "prometheus/nth-queue.rules.test.yml")},
	} {
		if said, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args[:2], " "), err, said)
		}
	}
}

// What promtool says of names and help texts is what Prometheus's conventions are.
func TestTheMetricsFollowTheConventions(t *testing.T) {
	t.Parallel()
	promtool := debian.New(t, packages...).Program(t, "promtool")
	file := filepath.Join(t.TempDir(), "nth.prom")
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	nth := daemon.NewMachine(t, daemon.Options{
		Kubeconfig: "/nowhere", IMDS: imds.URL, Settings: fmt.Sprintf("[metrics]\ntextfile = %q\n", file),
	}).Start(t)
	nth.WaitStatus(t, "waiting for the kubelet's credential")
	nth.Stop(t)
	text, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer text.Close()
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = text
	if said, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, said)
	}
}
