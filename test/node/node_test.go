package node_test

import (
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/node"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m, 4)) }

func TestAPodRunsAndAnswersAndEndsWhenItIsDeleted(t *testing.T) {
	n := node.Start(t, lab.Shared(t), node.Options{})
	n.Node.AddPod(t, "web", node.Ends("1s"), lab.Grace(20*time.Second))
	n.Await(t, "the server serves", func() bool { return n.Life(t, "web").Address != "" })
	answer, err := http.Get("http://" + n.Life(t, "web").Address)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if said, err := io.ReadAll(answer.Body); err != nil || string(said) != "ok\n" {
		t.Errorf("the server says %q, %v", said, err)
	}
	if err := n.Node.Client.CoreV1().Pods(n.Node.Namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Node.WaitGone(t, "web")
	if life := n.Life(t, "web"); !life.Itself || life.Last.Sub(life.Terminated) < time.Second {
		t.Errorf("the server, which takes 1 s to end, has %s", life)
	}
}
