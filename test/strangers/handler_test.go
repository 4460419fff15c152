package strangers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/apt"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
	"github.com/nth-project/nth/test/tools"
)

// The scripts in which nth differs from the handler on purpose, or that cannot run here.
var differs = map[string]string{
	"asg-launch-lifecycle-sqs-test":    "it needs an account of AWS; the handler's own runner leaves it out, too",
	"asg-lifecycle-sqs-heartbeat-test": "it counts the handler's own messages about heartbeats that localstack refuses",
	"prometheus-metrics-sqs-test":      "nth-queue has no action post-drain, and no metrics of another library for the Go runtime",
	"prometheus-metrics-test":          "nth's metrics of the Go runtime have the names of Prometheus' own library",
	"scheduled-change-event-sqs-test":  "the account of its message is \"account id\": nth-queue acts upon nothing that AWS would not send",
	"spot-interruption-test":           "nth never sets the out-of-service taint while the machine runs",
	"spot-interruption-test-events-on": "nth has no Event PreDrain, and adds no annotations of the user's",
}

// translate puts what nth says in its log and in Events into the handler's words, for the scripts that look for those.
func translate(text string) string {
	text = drained.ReplaceAllString(text, "Node successfully cordoned and drained")
	return strings.ReplaceAll(text, `delivered the webhook notice`, `Webhook Success: delivered the webhook notice`)
}

var drained = regexp.MustCompile(`[\w-]+: drained after .*`)

// TestHandler_ScriptsPassWithNth runs the end-to-end tests of aws-node-termination-handler. Its chart stands for nth or nth-queue, with the
// settings that "config import" makes of the chart's values. A node's credential may not set taints: those are set as a controller would
// that turns the condition InterruptionPending into a taint.
func TestHandler_ScriptsPassWithNth(t *testing.T) {
	if os.Getenv("NTH_NIGHTLY") == "" {
		t.Log("only \"make strangers\" runs the handler's scripts")
		return
	}
	if err := apt.Install(t.Context(), map[string]string{"curl": "curl", "jq": "jq"}, t.Logf); err != nil {
		t.Fatal(err)
	}
	tool, err := filepath.Abs("../tools/handler")
	if err != nil {
		t.Fatal(err)
	}
	files, version := module(t, tool, "github.com/aws/aws-node-termination-handler")
	scripts, err := filepath.Glob(files + "/test/e2e/*")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("looking for the scripts: %d found, %v", len(scripts), err)
	}
	for _, script := range scripts {
		name := filepath.Base(script)
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(name, "prometheus") { // They ask at the same port.
				t.Parallel()
			}
			passed, report := newScene(t).play(t, script)
			table.judge(t, "aws-node-termination-handler "+version+", scripts", name, passed, differs[name], report)
		})
	}
}

// scene is what a script plays on.
type scene struct {
	node    *lab.Node
	port    string // of the metadata service
	mock    *exec.Cmd
	values  map[string]string // of the handler's chart
	nth     *daemon.Daemon
	machine *daemon.Machine
	region  *region.Region
	// instance is the worker's ID in the region.
	instance string
	secret   string // the webhook's URL
	webhook  *httptest.Server
	proxy    *httptest.Server
	proxied  atomic.Value // the last URL
	// deployed tells that the workload was installed, and seen that the script has seen it run, or looks for nth's log. Then nth starts: the
	// handler takes longer than that, and scripts rely on it.
	deployed, seen bool
}

func newScene(t *testing.T) *scene {
	s := &scene{node: lab.Shared(t).AddNode(t)}
	_, s.port, _ = strings.Cut(freeAddress(t), ":")
	s.webhook = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(s.webhook.Close)
	forward := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}
	s.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.proxied.Store(r.URL.String())
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(s.proxy.Close)
	return s
}

// prelude is what the handler's own runner gives to its scripts.
const prelude = `retry() { shift; "$@"; }
get_nth_worker_pod() { echo nth; }
export -f retry get_nth_worker_pod
exec bash "$1"`

// A call is one of a program that a script calls, and what that prints.
type call struct {
	args   []string
	answer chan string
}

// play runs a script to its end, and does meanwhile what it asks for.
func (s *scene) play(t *testing.T, script string) (passed bool, report string) {
	t.Helper()
	calls := make(chan call)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c := call{strings.Split(strings.TrimSuffix(string(body), "\x00"), "\x00"), make(chan string, 1)}
		select {
		case calls <- c:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, <-c.answer) // fails only if the script was killed
	}))
	defer server.Close()
	programs := t.TempDir()
	for _, name := range []string{"awslocal", "docker", "helm", "kind", "kubectl", "sleep"} {
		shim, err := filepath.Abs("shim")
		if err == nil {
			err = os.Symlink(shim, filepath.Join(programs, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var said bytes.Buffer
	command := exec.CommandContext(ctx, "bash", "-c", prelude, "bash", script)
	command.Dir, command.Stdout, command.Stderr = programs, &said, &said
	command.WaitDelay = time.Second
	command.Env = append(os.Environ(), "NTH_SCENE="+server.URL, "PATH="+programs+":"+os.Getenv("PATH"), "TMP_DIR="+programs,
		"CLUSTER_NAME=lab", "TEST_NODE="+s.node.Name, "AEMM_URL=127.0.0.1", "AEMM_DL_URL=metadata-mock", "AEMM_VERSION=", "IMDS_PORT="+s.port,
		"AWS_REGION="+region.Name, "WORKER_IP=192.168.0.1", "NTH_CONTROL_LABEL=control", "NTH_WORKER_LABEL=worker", "WEBHOOK_URL="+s.webhook.URL,
		"NODE_TERMINATION_HANDLER_DOCKER_REPO=nth", "NODE_TERMINATION_HANDLER_DOCKER_TAG=nth", "WEBHOOK_DOCKER_REPO=nth", "WEBHOOK_DOCKER_TAG=nth")
	ended := make(chan error, 1)
	go func() { ended <- command.Run() }()
	for {
		select {
		case c := <-calls:
			c.answer <- s.answer(t, c.args)
			if s.seen && s.nth == nil && s.values != nil {
				s.start(t)
			}
		case err := <-ended:
			report = said.String() + "\nnth:\n" + s.log()
			if s.nth != nil {
				s.nth.Kill()
			}
			return err == nil, report
		}
	}
}

func (s *scene) log() string {
	if s.nth == nil {
		return ""
	}
	var lines []string
	for _, e := range s.nth.Logged("") {
		lines = append(lines, fmt.Sprintf("%s %s %v", e.Level, e.Message, e.Fields["error"]))
	}
	return strings.Join(lines, "\n") + "\n"
}

// answer does what a program would have done, and returns what it prints.
func (s *scene) answer(t *testing.T, args []string) string {
	t.Helper()
	line := strings.Join(args, " ")
	begins := func(with string) bool { return strings.HasPrefix(line, with) }
	switch {
	case begins("helm"):
		s.install(t, args[1:])
	case begins("awslocal"):
		return s.aws(t, args[1:])
	case strings.Contains(line, "access.log"):
		return fmt.Sprintln(s.proxied.Load())
	case begins("kubectl logs"):
		s.seen = true
		return translate(s.log())
	case strings.Contains(line, "app=localstack"):
		return "localstack " + time.Now().UTC().Format(time.RFC3339) + "\n"
	case begins("kubectl get pods -o json"):
		return `{"items":[{"metadata":{"name":"squid"},"spec":{"nodeName":"worker"}}]}`
	case begins("kubectl get pods"):
		return "nth\n"
	case line == "kubectl get deployments":
		return "amazon-ec2-metadata-mock 1/1\n"
	case begins("kubectl delete deployments"):
		s.stopMock()
	case begins("kubectl create secret"):
		_, s.secret, _ = strings.Cut(line, "webhookurl=")
	case begins("kubectl create"), begins("kubectl delete"): // what only the chart reads
	case begins("kubectl"):
		return s.kubectl(t, args[1:])
	}
	return ""
}

// kubectl runs the real one.
func (s *scene) kubectl(t *testing.T, args []string) string {
	t.Helper()
	program, err := tools.Path("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	if s.values["taintNode"] == "true" && s.region == nil {
		s.taint(t)
	}
	namespace := s.node.Namespace
	if args[1] == "events" {
		namespace = metav1.NamespaceDefault
	}
	for i := range args {
		args[i] = strings.Replace(args[i], "source=aws-node-termination-handler", "source=nth", 1)
		if args[i] == "lab-worker" {
			args[i] = s.node.Name
		}
	}
	run := exec.CommandContext(t.Context(), program, append([]string{"--kubeconfig", lab.Shared(t).Kubeconfig, "--namespace", namespace}, args...)...)
	said, _ := run.Output() // The scripts look at what it prints, not at its status.
	s.seen = s.seen || s.deployed && args[1] == "deployments"
	return translate(string(said))
}

// kinds are the handler's taints, by the reason of nth's condition.
var kinds = map[string]string{
	"SpotInterruption": "spot-itn", "RebalanceRecommendation": "rebalance-recommendation", "ScheduledMaintenance": "scheduled-maintenance",
	"ASGTermination": "asg-lifecycle-termination",
}

// taint does what a controller would that turns nth's condition into a taint.
func (s *scene) taint(t *testing.T) {
	t.Helper()
	node := s.node.Object(t)
	const prefix = "aws-node-termination-handler/"
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, prefix) })
	for _, c := range node.Status.Conditions {
		if c.Type == "InterruptionPending" && c.Status == corev1.ConditionTrue {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: prefix + kinds[c.Reason], Effect: corev1.TaintEffectNoSchedule})
		}
	}
	// A conflict is over at the script's next look.
	_, _ = lab.Shared(t).Admin.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
}

// install is "helm install" and "helm upgrade".
func (s *scene) install(t *testing.T, args []string) {
	t.Helper()
	values := map[string]string{}
	for i, arg := range args {
		if key, value, found := strings.Cut(arg, "="); found && args[i-1] == "--set" {
			values[key] = strings.ReplaceAll(value, `\`, "")
		}
	}
	chart := func(name string) bool {
		return slices.ContainsFunc(args, func(arg string) bool { return filepath.Base(arg) == name })
	}
	switch {
	case chart("aws-node-termination-handler"):
		s.values = values
		if s.nth != nil {
			s.nth.Stop(t)
			if values["procUptimeFile"] != "" { // The machine has been started since then.
				s.machine.Reboot(t)
			}
			s.start(t)
		}
	case chart("webhook-test-proxy") && !s.deployed:
		s.node.AddDeployment(t, "regular-pod-test", 1)
		s.deployed = true
	case chart("metadata-mock"):
		s.startMock(t, values)
	case chart("localstack"):
		s.region = region.New(t)
	}
}

func (s *scene) startMock(t *testing.T, values map[string]string) {
	t.Helper()
	s.stopMock()
	arguments := strings.Fields(strings.Trim(values["arguments"], "{}"))
	if values["aemm.mockDelaySec"] != "" {
		arguments = append(arguments, "--mock-delay-sec", "10") // pauses are shorter, too
	}
	if values["aemm.events.state"] != "" {
		arguments = append(arguments, "--state", values["aemm.events.state"])
	}
	if values["aemm.imdsv2"]+values["aemm.IMDSv2"] != "" {
		arguments = append(arguments, "--imdsv2")
	}
	s.mock = startMock(t, s.port, arguments...)
}

func (s *scene) stopMock() {
	if s.mock != nil {
		_ = s.mock.Process.Kill() // fails only if it has ended
		s.mock = nil
	}
}

// words matches where a word of a value's name ends, such as in webhookURL and enableASGLifecycleDraining.
var words = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// start starts nth or nth-queue with the settings that it makes of the chart's values.
func (s *scene) start(t *testing.T) {
	t.Helper()
	var manifest strings.Builder // as the chart's templates make it of the values
	manifest.WriteString("spec:\n  containers:\n  - env:\n")
	for key, value := range s.values {
		if !strings.ContainsAny(key, ".[") {
			fmt.Fprintf(&manifest, "    - {name: %s, value: %q}\n", strings.ToUpper(words.ReplaceAllString(key, "${1}${3}_${2}${4}")), value)
		}
	}
	if s.secret != "" {
		manifest.WriteString("    - {name: WEBHOOK_URL, valueFrom: {secretKeyRef: {}}}\n")
	}
	binary := daemon.Binary
	if s.region != nil {
		binary = daemon.QueueBinary
	}
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	importing := exec.CommandContext(t.Context(), program, "config", "import", "-")
	importing.Stdin, importing.Stderr = strings.NewReader(manifest.String()), os.Stderr
	imported, err := importing.Output()
	if err != nil {
		t.Fatalf("importing the settings: %v\n%s", err, manifest.String())
	}
	url := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(url, []byte(s.secret+s.values["webhookURL"]), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := strings.NewReplacer("/etc/nth/webhook-url", url, "/etc/nth/nth-queue-webhook-url", url, "0.0.0.0:9092", "127.0.0.1:7000",
		"tcp://squid.default.svc.cluster.local:3128", s.proxy.URL).Replace(string(imported))
	if s.region != nil {
		s.nth = daemon.StartQueue(t, daemon.QueueOptions{
			Kubeconfig: lab.Shared(t).Kubeconfig, URL: s.region.QueueURL, Endpoint: s.region.URL, Settings: settings,
		})
		return
	}
	options := daemon.Options{Kubeconfig: s.node.Kubeconfig, IMDS: "http://127.0.0.1:" + s.port, Settings: settings}
	if s.machine == nil {
		s.machine = daemon.NewMachine(t, options)
	}
	s.machine.Configure(t, options)
	s.nth = s.machine.Start(t)
}

// aws is localstack's command.
func (s *scene) aws(t *testing.T, args []string) string {
	t.Helper()
	flag := func(name string) string {
		if at := slices.Index(args, name); at >= 0 {
			return args[at+1]
		}
		return ""
	}
	switch args[1] {
	case "run-instances":
		address := flag("--private-ip-address")
		id := s.region.NewInstance(address, nil)
		if address == "192.168.0.1" { // the worker's, as EC2's cloud controller would find out
			region.Bind(t, lab.Shared(t), s.node, id)
			s.instance = id
		}
		return fmt.Sprintf(`{"Instances":[{"InstanceId":%q,"PrivateDnsName":%q}]}`, id, s.node.Name)
	case "create-queue":
		return fmt.Sprintf(`{"QueueUrl":%q}`, strings.Replace(s.region.QueueURL, "/000000000000/", "/123456789012/", 1)) // the messages' account
	case "send-message":
		body := flag("--message-body")
		if strings.Contains(body, "State-change") {
			s.region.EC2.Enter(s.instance, "stopping") // which nth-queue asks EC2 about
		}
		s.region.Send(t, body)
	case "get-queue-attributes":
		visible, inFlight := s.region.Count(t)
		return fmt.Sprintf(`{"Attributes":{"ApproximateNumberOfMessages":"%d","ApproximateNumberOfMessagesNotVisible":"%d"}}`, visible, inFlight)
	}
	return ""
}
