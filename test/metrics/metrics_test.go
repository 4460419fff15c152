// Package metrics judges nth's metrics as those see them who read them: a real Prometheus, and a real node_exporter with
// its textfile collector, both as Debian has them.
package metrics

import (
	"bytes"
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
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/machine"
	"github.com/nth-project/nth/test/internal/region"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// program prepares a run of prometheus, promtool or prometheus-node-exporter on this host, out of a root file system of Debian, with the
// libraries there.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	root := machine.Root(t, "bookworm", "prometheus", "prometheus-node-exporter")
	loaders, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu/ld-linux-*.so.*"))
	if err != nil || len(loaders) != 1 {
		t.Fatalf("looking for the loader of %s: %q, %v", root, loaders, err)
	}
	return exec.Command(loaders[0], append([]string{"--library-path", filepath.Dir(loaders[0]), filepath.Join(root, "usr/bin", name)}, args...)...)
}

// start starts a program, and ends it with the test. What it says is logged if the test fails.
func start(t *testing.T, name string, args ...string) {
	t.Helper()
	var said bytes.Buffer
	command, ended := program(t, name, args...), make(chan struct{})
	command.Stdout, command.Stderr = &said, &said
	if err := lab.StartBound(command, func(error) { close(ended) }); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill() // fails only if it has ended
		<-ended
		if t.Failed() {
			t.Logf("%s said:\n%s", name, &said)
		}
	})
}

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

// A program that serves metrics and writes a file of them, which a real Prometheus and a real node_exporter read. Everything is there before
// anything has happened: counters begin at zero.
func TestPrometheus_FollowsADrainBothWays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// start starts the program for a node, and returns what interrupts that.
		start func(t *testing.T, node *lab.Node, settings string) (nth *daemon.Daemon, interrupt func())
		// before and after the drain, what each of the two jobs has, with a gap for its name; and what there is in all.
		before, after, ever []string
	}{
		"nth": {
			start:  startNth,
			before: []string{`nth_credential_up{job=%q} == 1`, `sum(nth_source_up{job=%q}) == 4`},
			after: []string{
				`nth_drain_pods{job=%q} == 3 and nth_drain_pods_left == 0 and nth_draining == 0`,
				`nth_events_pending{kind="spot-interruption", job=%q} == 1`, `nth_notice_to_cordon_seconds_count{job=%q} == 1`,
				`nth_drain_deadline_remaining_seconds{job=%q} > 0`, `nth_event_deadline_timestamp_seconds{job=%q} > time()`,
			},
			ever: []string{
				`max_over_time(nth_draining{job="nth"}[1m]) == 1`,
				`ALERTS{alertname="NthInterruptionPending", alertstate="firing", kind="spot-interruption"}`,
			},
		},
		"nth-queue": {
			start:  startQueue,
			before: []string{`nth_queue_up{job=%q} == 1`, `nth_queue_messages_total{outcome="poisoned", job=%q} == 0`},
			after: []string{
				`nth_queue_messages_total{outcome="deleted", job=%q} == 1`, `nth_queue_receive_delay_seconds_count{job=%q} == 2`,
				`sum(nth_api_requests_total{method="POST", code="201", job=%q}) >= 3`, `nth_queue_nodes{state="known", job=%q} >= 1`,
			},
			ever: []string{`ALERTS{alertname="NthQueuePoisoned", alertstate="firing"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, dir := somewhere(), t.TempDir()
			node := lab.Shared(t).AddNode(t)
			node.AddDeployment(t, "web", 3)
			nth, interrupt := c.start(t, node, fmt.Sprintf(settings, address, filepath.Join(dir, name+".prom")))
			start(t, "prometheus-node-exporter", "--web.listen-address="+address+":9100", "--collector.disable-defaults",
				"--collector.textfile", "--collector.textfile.directory="+dir)
			p := startPrometheus(t, name, address)
			both := func(queries ...string) {
				t.Helper()
				for _, job := range []string{name, "node"} {
					for _, query := range queries {
						p.await(t, fmt.Sprintf(query, job))
					}
				}
			}
			both(append(c.before, `nth_actions_total{action="drain", outcome="done", job=%q} == 0`)...)
			interrupt()
			node.WaitEmpty(t)
			nth.WaitLog(t, systemd.Drained)
			both(append(c.after, `nth_actions_total{action="drain", outcome="done", job=%q} == 1`, `nth_pods_evicted_total{job=%q} == 3`)...)
			for _, query := range c.ever {
				p.await(t, query)
			}
			mustFollowConventions(t, filepath.Join(dir, name+".prom"))
			judgeDashboard(t, p)
			judgeRules(t, p)
			nth.Stop(t)
		})
	}
}

// mustFollowConventions fails the test unless promtool likes the names and the help texts in the file.
func mustFollowConventions(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check := program(t, "promtool", "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	if said, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, said)
	}
}

func startNth(t *testing.T, node *lab.Node, settings string) (nth *daemon.Daemon, interrupt func()) {
	imds := imdstest.NewServer()
	t.Cleanup(imds.Close)
	nth = daemon.NewMachine(t, daemon.Options{Kubeconfig: node.Kubeconfig, IMDS: imds.URL, Settings: settings}).Start(t)
	nth.WaitWatching(t, node.Name)
	return nth, func() { imds.SetSpot("terminate", time.Now().Add(2*time.Minute)) }
}

func startQueue(t *testing.T, node *lab.Node, settings string) (nth *daemon.Daemon, interrupt func()) {
	aws := region.New(t)
	instance := aws.NewInstance("", nil)
	region.Bind(t, lab.Shared(t), node, instance)
	nth = daemon.StartQueue(t, daemon.QueueOptions{Kubeconfig: lab.Shared(t).Kubeconfig, URL: aws.QueueURL, Endpoint: aws.URL, Settings: settings})
	nth.WaitStatus(t, "reading the queue")
	return nth, func() { aws.Send(t, region.Spot(instance), "what is this?") }
}

func TestAlerts_AreRightAndSayWhatTheyShould(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", shipped(t, "prometheus/nth.rules.yml"), shipped(t, "prometheus/nth-queue.rules.yml")},
		{"test", "rules", shipped(t, "prometheus/nth.rules.test.yml"), shipped(t, "prometheus/nth-queue.rules.test.yml")},
	} {
		if said, err := program(t, "promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args[:2], " "), err, said)
		}
	}
}
