package bench

import (
	"bytes"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// account is the handler's in the cluster, as its chart names it.
const account = "aws-node-termination-handler"

// grant gives the account what the handler's chart gives it.
func (b *bench) grant(t lab.TB) {
	t.Helper()
	named := metav1.ObjectMeta{Name: account}
	role := &rbacv1.ClusterRole{ObjectMeta: named, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch", "update"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		{APIGroups: []string{"extensions", "apps"}, Resources: []string{"daemonsets"}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: named,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: account}},
	}
	ctx := t.Context()
	_, first := b.cp.Admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx, &corev1.ServiceAccount{ObjectMeta: named}, metav1.CreateOptions{})
	_, second := b.cp.Admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, third := b.cp.Admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	for _, err := range []error{first, second, third} {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("granting the handler its rights: %v", err)
		}
	}
}

// identity puts the token and the certificate of the account into a directory, as the kubelet puts them into a container.
func (b *bench) identity(t lab.TB) (dir string) {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	token, err := b.cp.Admin.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("asking for the handler's token: %v", err)
	}
	kubeconfig, err := clientcmd.LoadFromFile(b.cp.Kubeconfig)
	if err != nil {
		t.Fatalf("reading the certificate of the API server: %v", err)
	}
	if dir, err = os.MkdirTemp("", "handler-"); err != nil {
		t.Fatalf("writing the handler's identity: %v", err)
	}
	files := map[string][]byte{"token": []byte(token.Status.Token)}
	for _, cluster := range kubeconfig.Clusters {
		if files["ca.crt"] = cluster.CertificateAuthorityData; cluster.CertificateAuthority != "" {
			if files["ca.crt"], err = os.ReadFile(cluster.CertificateAuthority); err != nil {
				t.Fatalf("reading the certificate of the API server: %v", err)
			}
		}
	}
	for name, content := range files {
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
	said    *words
}

// contained runs a program where there is what the kubelet puts into its container, and nobody else sees it.
const contained = `mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io && cp -r "$1" /run/secrets/kubernetes.io/serviceaccount && exec "$2"`

// handle starts the handler, and returns when it watches.
func (b *bench) handle(t lab.TB) *handler {
	t.Helper()
	b.grant(t)
	program, err := tools.Path("node-termination-handler")
	if err != nil {
		t.Fatalf("%v", err)
	}
	server, err := url.Parse(b.cp.Server)
	if err != nil {
		t.Fatalf("reading the API server's address: %v", err)
	}
	h := &handler{node: b.cp.AddNode(t), imds: imdstest.NewServer(), said: new(words)}
	t.Cleanup(h.imds.Close)
	h.command = exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec", contained, "sh", b.identity(t), program)
	h.command.Env = append(os.Environ(), "NODE_NAME="+h.node.Name, "POD_NAME=handler", "NAMESPACE="+metav1.NamespaceSystem,
		"KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port(), "INSTANCE_METADATA_URL="+h.imds.URL)
	h.command.Stdout, h.command.Stderr = h.said, h.said
	if err := h.command.Start(); err != nil {
		t.Fatalf("starting the handler: %v", err)
	}
	t.Cleanup(h.stop)
	h.said.wait(t, "Started watching for interruption events")
	return h
}

// stop ends the handler, if it has not been ended.
func (h *handler) stop() {
	if h.command.ProcessState == nil {
		_ = h.command.Process.Kill()
		_ = h.command.Wait() // It was killed.
	}
}

// words are what a process has said.
type words struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *words) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(data)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// wait waits until the process has said something.
func (w *words) wait(t lab.TB, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(w.String(), what); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) || t.Context().Err() != nil {
			t.Fatalf("waiting for the handler to say %q: it says\n%s", what, w)
		}
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

// settles is how long a process is left alone before its memory is read.
const settles = 10 * time.Second

// drainByHandler returns how long the handler took to empty a node, and what it occupied before that, and at most.
func (b *bench) drainByHandler(t lab.TB, pods int) (took time.Duration, used resident) {
	t.Helper()
	h := b.handle(t)
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
