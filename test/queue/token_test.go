package queue

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/eks"
	"github.com/nth-project/nth/test/internal/lab"
)

// The credentials are those by which nth-queue asks SQS.
func TestATokenForEKSNeedsNoPlugin(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	cluster := eks.Open(t, lab.Credential{Kubeconfig: lab.Shared(t).Kubeconfig}, "AKIDEXAMPLE0000001", "secret")
	text, err := cluster.Kubeconfig("/nowhere/aws")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node, instance := addInstance(t, lab.Shared(t))
	node.AddPod(t, "pod")
	consumer := q.start(t, fmt.Sprintf("[kubernetes]\nkubeconfig = %q\ntoken = \"eks\"\n", kubeconfig))
	q.Send(spot(instance))
	consumer.WaitLog(t, systemd.Drained)
	if err := cluster.Refused(); err != nil || cluster.Accepted() == 0 {
		t.Errorf("%d requests were let in, and others were not: %v", cluster.Accepted(), err)
	}
	consumer.Stop(t)
}
