package bench

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

const (
	// comparedDrains is how often each empties a node.
	comparedDrains = 3
	// settles is how long a process is left alone before its memory is read.
	settles = 10 * time.Second
	// account is the handler's in the cluster, as its chart names it.
	account = "aws-node-termination-handler"
)

// A figure is what was measured of one program.
type figure struct {
	cordon, drain sample
	idle, peak    float64 // MB that it occupies: before a drain, and at most
	size          float64 // MB of the program's file
}

// compare measures nth and aws-node-termination-handler in turns, some five minutes, and prints the comparison in Markdown.
func compare(t lab.TB) {
	release, err := tools.Version("handler")
	if err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Printf("measuring nth and the handler on %d processors, load %s; some minutes\n", runtime.NumCPU(), loadNow())
	var nth, handler figure
	b := &bench{cp: lab.ForTest(t)}
	b.compare(t, &nth, &handler)
	fmt.Printf("\n| | nth | aws-node-termination-handler %s, IMDS mode |\n|---|--:|--:|\n", release)
	row := func(what, format string, of func(figure) []any) {
		fmt.Printf("| %s | "+format+" | "+format+" |\n", append(append([]any{what}, of(nth)...), of(handler)...)...)
	}
	row(fmt.Sprintf("from the notice to the cordon: median of %d (longest)", events), "%.2f s (%.2f s)",
		func(f figure) []any { return []any{f.cordon.median(), f.cordon.worst()} })
	row(fmt.Sprintf("from the cordon until %d pods are gone: median of %d", podsPerNode, comparedDrains), "%.1f s",
		func(f figure) []any { return []any{f.drain.median()} })
	row("resident memory: watching (most during that drain)", "%.0f MB (%.0f MB)", func(f figure) []any { return []any{f.idle, f.peak} })
	row("program", "%.0f MB", func(f figure) []any { return []any{f.size} })
	fmt.Printf("\nBoth with their own defaults, in turns, on one machine with %d processors, a real API server, and pods that end at once.\n\nload now %s\n",
		runtime.NumCPU(), loadNow())
}

func (b *bench) compare(t lab.TB, nth, handler *figure) {
	ours, first := daemon.Binary()
	theirs, second := tools.Path("node-termination-handler")
	if err := errors.Join(first, second); err != nil {
		t.Fatalf("%v", err)
	}
	nth.size, handler.size = megabytes(t, ours), megabytes(t, theirs)

	identity := b.identity(t)
	w, h := b.watcher(t, ""), b.handle(t, identity)
	cordoned, stop := cordons(t, h.node)
	for i := range events {
		nth.cordon = append(nth.cordon, w.react(t, i))
		handler.cordon = append(handler.cordon, h.react(t, cordoned))
	}
	stop()
	h.stop()
	w.end(t)
	add := func(f *figure, took time.Duration, used resident) {
		f.drain, f.idle, f.peak = append(f.drain, took), used.now, max(f.peak, used.peak)
	}
	for range comparedDrains {
		took, used := b.drainByNTH(t, podsPerNode, settles, "")
		add(nth, took, used)
		took, used = b.drainByHandler(t, identity, podsPerNode)
		add(handler, took, used)
	}
}

// identity makes the handler's account in the cluster, and puts its token and the certificate of the API server into a directory, as the
// kubelet puts them into a container.
func (b *bench) identity(t lab.TB) (dir string) {
	t.Helper()
	b.cp.Kubectl(t, "", "create", "serviceaccount", account, "--namespace=kube-system")
	b.cp.Kubectl(t, "", "create", "clusterrolebinding", account, "--clusterrole=cluster-admin", "--serviceaccount=kube-system:"+account)
	token := b.cp.Kubectl(t, "", "create", "token", account, "--namespace=kube-system")
	config, err := clientcmd.BuildConfigFromFlags("", b.cp.Kubeconfig)
	if err != nil {
		t.Fatalf("writing the handler's identity: %v", err)
	}
	dir = t.TempDir()
	for name, content := range map[string][]byte{"token": []byte(strings.TrimSpace(token)), "ca.crt": config.CAData} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatalf("writing the handler's identity: %v", err)
		}
	}
	return dir
}

// A handler is aws-node-termination-handler at work for a node, with its own defaults.
type handler struct {
	node    *lab.Node
	imds    *imdstest.Server
	command *exec.Cmd
}

// contained runs a program where there is what the kubelet puts into its container, and nobody else sees it.
const contained = `mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io && cp -r "$1" /run/secrets/kubernetes.io/serviceaccount && exec "$2"`

// handle starts the handler with the identity in a directory, and returns when it watches.
func (b *bench) handle(t lab.TB, identity string) *handler {
	t.Helper()
	program, err := tools.Path("node-termination-handler")
	if err != nil {
		t.Fatalf("%v", err)
	}
	server, err := url.Parse(b.cp.Server)
	if err != nil {
		t.Fatalf("reading the API server's address: %v", err)
	}
	log, err := os.CreateTemp(t.TempDir(), "handler-*.log")
	if err != nil {
		t.Fatalf("starting the handler: %v", err)
	}
	defer func() { _ = log.Close() }()
	h := &handler{node: b.cp.AddNode(t), imds: imdstest.NewServer()}
	t.Cleanup(h.imds.Close)
	h.command = exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec", contained, "sh", identity, program)
	h.command.Env = append(os.Environ(), "NODE_NAME="+h.node.Name, "POD_NAME=handler", "NAMESPACE="+metav1.NamespaceSystem,
		"KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port(), "INSTANCE_METADATA_URL="+h.imds.URL)
	h.command.Stdout, h.command.Stderr = log, log
	if err := h.command.Start(); err != nil {
		t.Fatalf("starting the handler: %v", err)
	}
	t.Cleanup(h.stop)
	lab.Await(t, "the handler watches, by "+log.Name(), func() bool {
		said, err := os.ReadFile(log.Name())
		return err == nil && bytes.Contains(said, []byte("Started watching for interruption events"))
	})
	return h
}

// stop ends the handler, if it has not been ended.
func (h *handler) stop() {
	if h.command.ProcessState == nil {
		_ = h.command.Process.Kill()
		_ = h.command.Wait() // It was killed.
	}
}

// notice announces what EC2 announces: two minutes ahead, and to the second.
func (h *handler) notice() time.Time {
	now := time.Now()
	h.imds.SetSpot("terminate", now.Add(2*time.Minute).Truncate(time.Second))
	return now
}

// react returns how long the cordon took, for a notice at any moment between two looks. Each notice names another second, as the
// handler takes two that name the same one for one.
func (h *handler) react(t lab.TB, cordoned <-chan time.Time) time.Duration {
	t.Helper()
	time.Sleep(time.Second + rand.N(2*time.Second))
	began := h.notice()
	took := receive(t, cordoned).Sub(began)
	h.imds.ClearSpot()
	h.node.Uncordon(t) // Nobody takes the handler's cordons back.
	h.node.WaitUncordoned(t)
	return took
}

// drainByHandler returns how long the handler took to empty a node, and what it occupied before that, and at most.
func (b *bench) drainByHandler(t lab.TB, identity string, pods int) (took time.Duration, used resident) {
	t.Helper()
	h := b.handle(t, identity)
	h.node.AddPods(t, "pod", pods)
	time.Sleep(settles)
	used = memory(t, h.command.Process.Pid)
	span := watchSpan(t, h.node, pods)
	h.notice()
	took = span.wait(t)
	used.peak = memory(t, h.command.Process.Pid).peak
	h.stop()
	return took, used
}
