package lab_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

func TestTheAPIServerComesBackWithItsDataAndItsNodes(t *testing.T) {
	t.Parallel()
	cp := lab.ForTest(t)
	node := cp.AddNode(t)
	node.AddPod(t, "before")
	cp.StopAPIServer(t)
	_, err := node.Client.CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v from a stopped API server, want a refused connection", err)
	}
	cp.StartAPIServer(t)
	node.AddPod(t, "after")
	if got := len(node.Pods(t)); got != 2 {
		t.Errorf("%d pods after the restart, want 2", got)
	}
}

func TestAFrozenAPIServerHangsUntilItThaws(t *testing.T) {
	t.Parallel()
	cp := lab.ForTest(t)
	node := cp.AddNode(t)
	cp.FreezeAPIServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := node.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v from a frozen API server, want no answer", err)
	}
	cp.ThawAPIServer(t)
	if got := node.Object(t).Name; got != node.Name {
		t.Errorf("the node is %q, want %q", got, node.Name)
	}
}

func TestARotatedCertificateIsTheSameNode(t *testing.T) {
	t.Parallel()
	node := lab.Shared(t).AddNode(t)
	before, err := os.ReadFile(node.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	node.RotateCertificate(t)
	after, err := os.ReadFile(node.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(before, after) {
		t.Error("the certificate is still the old one")
	}
	if out := kubectl(t, node.Kubeconfig, "auth", "whoami"); !strings.Contains(out, "system:node:"+node.Name) {
		t.Errorf("kubectl is taken for somebody else: %s", out)
	}
}

func TestAProgramUsesTheLabAsATestDoes(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var dir string
	err := lab.Run(t.Context(), &out, func(p lab.TB) {
		p.Cleanup(func() { p.Logf("goodbye") })
		cp := lab.ForTest(p)
		dir = cp.Dir
		p.Logf("hello %s", cp.AddNode(p).Name)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "hello ip-10-0-") || !strings.HasSuffix(got, "\ngoodbye\n") {
		t.Errorf("the program said %q", got)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there", dir)
	}
}

func TestAProgramThatFailsIsCleanedUpAndToldWhy(t *testing.T) {
	t.Parallel()
	cleaned := false
	err := lab.Run(t.Context(), &bytes.Buffer{}, func(p lab.TB) {
		p.Cleanup(func() { cleaned = p.Failed() })
		p.Fatalf("no %s", "luck")
	})
	if err == nil || err.Error() != "no luck" || !cleaned {
		t.Errorf("got error %v, cleaned up %t", err, cleaned)
	}
}

// The name of this variable tells a second copy of the test binary that it is
// the one to be killed, and where to put its control plane.
const doomed = "NTH_LAB_DOOMED"

func TestNothingOutlivesAProcessThatIsKilled(t *testing.T) {
	if dir := os.Getenv(doomed); dir != "" {
		if _, err := lab.Start(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("up\n")
		select {}
	}
	t.Parallel()
	dir := t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
	victim.Env = append(os.Environ(), doomed+"="+dir)
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 3)); err != nil {
		t.Fatalf("the control plane did not start: %v", err)
	}
	// One that is just being looked at may not show what it was called with.
	awaitProcesses(t, dir, "5", func(n int) bool { return n >= 5 })
	victim.Process.Kill()
	victim.Wait()
	awaitProcesses(t, dir, "none", func(n int) bool { return n == 0 })
}

// awaitProcesses waits until as many processes as are wanted were called with dir.
func awaitProcesses(t *testing.T, dir, want string, enough func(int) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n := processesIn(t, dir)
		if enough(n) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d processes of the control plane are running, want %s", n, want)
		}
	}
}

// processesIn counts the running processes that were called with dir.
func processesIn(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, entry := range entries {
		// A process that has ended meanwhile, or is none, can't be read.
		line, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if bytes.Contains(line, []byte(dir+"/")) {
			count++
		}
	}
	return count
}

func kubectl(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	path, err := tools.Path("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig=" + kubeconfig}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl: %v\n%s", err, out)
	}
	return string(out)
}
