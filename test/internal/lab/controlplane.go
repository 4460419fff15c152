package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"
)

// startLimit bounds the start of a control plane: about five seconds on an
// idle machine, several times that on a busy one.
const startLimit = 90 * time.Second

// pollEvery is the pause between two questions where nothing can be watched.
const pollEvery = 25 * time.Millisecond

// A ControlPlane is a running etcd, API server, controller manager, scheduler
// and kwok, or the first two alone.
type ControlPlane struct {
	// Dir holds data, logs, certificates and kubeconfigs.
	Dir string
	// Server is the API server's URL.
	Server string
	// Kubeconfig is the administrator's kubeconfig, for kubectl.
	Kubeconfig string
	// Admin is the administrator's client, with no limit on its own rate.
	Admin kubernetes.Interface

	authority     *authority
	etcdPort      port
	etcdPeerPort  port
	apiserverPort port
	processes     []*process
	apiserver     *process
	nodes, users  atomic.Int32 // how many were named so far
	shared        bool         // outlives the test that uses it
	kept          atomic.Bool  // Dir stays for a person to read
}

// start starts a control plane of those components and etcd and the API server.
// ctx bounds the start only: the control plane runs until Stop, or until the
// calling process ends.
func start(ctx context.Context, beside []component) (*ControlPlane, error) {
	if err := checkBuilt(); err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "nth-lab-")
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	cp := &ControlPlane{Dir: dir}
	if err := cp.start(ctx, beside); err != nil {
		cp.kept.Store(true)
		return nil, errors.Join(fmt.Errorf("starting a control plane in %q: %w", dir, err), cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context, beside []component) error {
	if err := cp.prepare(); err != nil {
		return err
	}
	if err := cp.run(etcd); err != nil {
		return err
	}
	if err := cp.startAPIServer(ctx); err != nil {
		return err
	}
	for _, c := range beside {
		if err := cp.run(c); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes everything that the components need before they start.
func (cp *ControlPlane) prepare() (err error) {
	for _, p := range []*port{&cp.etcdPort, &cp.etcdPeerPort, &cp.apiserverPort} {
		if *p, err = reservePort(); err != nil {
			return err
		}
	}
	cp.Server = cp.apiserverPort.url("https")
	if cp.authority, err = newAuthority(); err != nil {
		return err
	}
	serving, err := cp.authority.server()
	if err != nil {
		return err
	}
	serviceAccountKey, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	admin, err := cp.credential("admin", "lab-admin", "system:masters")
	if err != nil {
		return err
	}
	cp.Admin, cp.Kubeconfig = admin.Client, admin.Kubeconfig
	return errors.Join(
		writeFile(cp.path("ca.pem"), cp.authority.pem),
		writeFile(cp.path("serving.pem"), serving),
		writeFile(cp.path("service-account.pem"), serviceAccountKey),
		writeFile(cp.path("tokens.csv"), tokens()),
		writeFile(cp.path("scheduler.yaml"), schedulerConfig(cp.Kubeconfig)),
		writeFile(cp.path("kwok.yaml"), kwokConfig),
		writeFile(cp.path("audit-policy.yaml"), []byte(auditPolicy)),
	)
}

func (cp *ControlPlane) path(file string) string { return filepath.Join(cp.Dir, file) }

// run starts a component.
func (cp *ControlPlane) run(c component) error {
	p, err := c.start(cp)
	if err != nil {
		return err
	}
	cp.processes = append(cp.processes, p)
	return nil
}

// startAPIServer starts the API server and waits until it says that it is
// ready, which includes that the built-in roles are in place.
func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	p, err := apiserver.start(cp)
	if err != nil {
		return err
	}
	cp.apiserver = p
	if err := cp.awaitReady(ctx); err != nil {
		return err
	}
	// nth-queue has its Leases in a namespace of their own, which its manifest makes.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "nth-queue"}}
	if _, err := cp.Admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the namespace of nth-queue: %w", err)
	}
	return nil
}

func (cp *ControlPlane) awaitReady(ctx context.Context) error {
	for {
		err := cp.Admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the API server: %w; its log is %s", err, cp.apiserver.log)
		case <-cp.apiserver.done:
			return fmt.Errorf("the API server has ended; its log is %s", cp.apiserver.log)
		case <-time.After(pollEvery):
		}
	}
}

// Stop ends all processes at once and removes Dir, unless a test that failed
// wants its logs to be read.
func (cp *ControlPlane) Stop() error {
	if cp.apiserver != nil {
		cp.apiserver.kill()
	}
	for _, p := range cp.processes {
		p.kill()
	}
	for _, p := range []port{cp.etcdPort, cp.etcdPeerPort, cp.apiserverPort} {
		if p.number != 0 {
			p.release()
		}
	}
	if cp.kept.Load() {
		return nil
	}
	return os.RemoveAll(cp.Dir)
}

// StopAPIServer ends the API server at once. Connections to it are refused
// until StartAPIServer.
func (cp *ControlPlane) StopAPIServer(t TB) {
	t.Helper()
	cp.mustOwn(t)
	cp.apiserver.kill()
}

// StartAPIServer starts the API server again, at the same address and with the
// same data, and waits until it is ready.
func (cp *ControlPlane) StartAPIServer(t TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	if err := cp.startAPIServer(ctx); err != nil {
		t.Fatalf("starting the API server again: %v", err)
	}
}

// FreezeAPIServer makes the API server hang: it takes connections and never
// answers, until ThawAPIServer.
func (cp *ControlPlane) FreezeAPIServer(t TB) {
	t.Helper()
	cp.mustOwn(t)
	cp.apiserver.signal(syscall.SIGSTOP)
	// Its threads come to a stop a moment after the signal.
	if err := unix.Waitid(unix.P_PID, cp.apiserver.pid, nil, unix.WSTOPPED, nil); err != nil {
		t.Fatalf("waiting until the API server has stopped: %v", err)
	}
}

// ThawAPIServer ends what FreezeAPIServer began.
func (cp *ControlPlane) ThawAPIServer(t TB) {
	t.Helper()
	cp.apiserver.signal(syscall.SIGCONT)
}

// mustOwn fails a test that would pull the shared control plane from under
// the other tests.
func (cp *ControlPlane) mustOwn(t TB) {
	t.Helper()
	if cp.shared {
		t.Fatalf("the API server is shared with other tests: use lab.ForTest")
	}
}
