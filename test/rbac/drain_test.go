package rbac_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// The rights are enough for everything that can be switched on.
func TestRights_AreEnoughForADrainWithAllExtras(t *testing.T) {
	t.Parallel()
	user := newUser(t)
	messages := sqstest.New()
	t.Cleanup(messages.Close)
	instances := &ec2test.Service{}
	aws := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" { // SQS has a protocol of its own.
			messages.ServeHTTP(w, r)
			return
		}
		instances.ServeHTTP(w, r)
	}))
	t.Cleanup(aws.Close)
	const instance = "i-0123456789abcdef0"
	node := lab.Shared(t).AddNode(t)
	region.Bind(t, lab.Shared(t), node, instance)
	instances.Add(ec2test.Instance{ID: instance, State: "stopped"})
	node.AddDaemonSet(t, "agent")
	node.AddDeployment(t, "web", 2)
	node.AddPods(t, "stubborn", 2, lab.Grace(time.Second), lab.MinAvailable(2))

	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: user.Kubeconfig, URL: messages.URL(), Endpoint: aws.URL,
		Settings: "[fleet]\ntaints = \"NoSchedule\"\nout_of_service = true\n[drain]\nload_balancer_wait = \"1s\"\n" +
			"margin = \"4m45s\"\n", // of the five minutes
	})
	complaints := follow(consumer)
	consumer.WaitStatus(t, "reading the queue")
	messages.Send(stateChange(t, instance, "stopped"))

	node.WaitFor(t, "out of service", func(n *corev1.Node) bool {
		return n.Spec.Unschedulable && len(n.Spec.Taints) > 1 && n.Labels["node.kubernetes.io/exclude-from-external-load-balancers"] != ""
	})
	node.WaitEmpty(t)
	consumer.Stop(t)
	for _, said := range complaints() {
		t.Errorf("nth-queue says %q", said)
	}
}

// follow gathers what nth-queue says about rights that it lacks, until it has ended.
func follow(consumer *daemon.Daemon) (complaints func() []string) {
	var said []string
	told := consumer.Follow(func(e daemon.Entry) {
		if strings.Contains(e.Message, "forbidden") || strings.Contains(e.Message, "refuse") {
			said = append(said, e.Message)
		}
	})
	return func() []string { <-told; return said }
}

func stateChange(t *testing.T, instance, state string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification", "id": "00000000-0000-4000-8000-000000000001",
		"time": time.Now().UTC().Format(time.RFC3339), "detail": map[string]string{"instance-id": instance, "state": state},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
