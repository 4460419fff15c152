package metrics

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/sqs/sqstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/debian"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

func TestPrometheusFollowsAQueueThroughBothWays(t *testing.T) {
	t.Parallel()
	tree := debian.New(t, packages...)
	address, dir := somewhere(), t.TempDir()
	messages := sqstest.NewServer()
	t.Cleanup(messages.Close)
	aws := httptest.NewServer(messages)
	t.Cleanup(aws.Close)
	node := lab.Shared(t).AddNode(t)
	node.AddDeployment(t, "web", 3)
	instance := fmt.Sprintf("i-%017x", time.Now().UnixNano())
	region.Bind(t, lab.Shared(t), node, instance)
	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: lab.Shared(t).Kubeconfig, URL: messages.QueueURL(), Endpoint: aws.URL,
		Settings: fmt.Sprintf(settings, address, filepath.Join(dir, "nth-queue.prom")),
	})
	consumer.WaitStatus(t, "reading the queue")
	tree.Start(t, "prometheus-node-exporter", "--web.listen-address="+address+":9100", "--collector.disable-defaults",
		"--collector.textfile", "--collector.textfile.directory="+dir)
	p := startPrometheus(t, tree, "nth-queue", address)
	for _, job := range []string{"nth-queue", "node"} {
		p.await(t, fmt.Sprintf(`nth_queue_up{job=%q} == 1`, job))
		p.await(t, fmt.Sprintf(`nth_queue_messages_total{outcome="poisoned", job=%q} == 0`, job))
		p.await(t, fmt.Sprintf(`nth_actions_total{action="drain", outcome="done", job=%q} == 0`, job))
	}

	text, err := json.Marshal(map[string]any{
		"id": instance, "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning",
		"time": time.Now().UTC().Format(time.RFC3339), "detail": map[string]string{"instance-id": instance, "instance-action": "terminate"},
	})
	if err != nil {
		t.Fatal(err)
	}
	messages.Send(string(text), "what is this?")
	node.WaitEmpty(t)
	consumer.WaitLog(t, systemd.Drained)
	for _, job := range []string{"nth-queue", "node"} {
		p.await(t, fmt.Sprintf(`nth_actions_total{action="drain", outcome="done", job=%q} == 1`, job))
		p.await(t, fmt.Sprintf(`nth_pods_evicted_total{job=%q} == 3`, job))
		p.await(t, fmt.Sprintf(`nth_queue_messages_total{outcome="deleted", job=%q} == 1`, job))
		p.await(t, fmt.Sprintf(`nth_queue_receive_delay_seconds_count{job=%q} == 2`, job))
		p.await(t, fmt.Sprintf(`sum(nth_api_requests_total{method="POST", code="201", job=%q}) >= 3`, job))
		p.await(t, fmt.Sprintf(`nth_queue_nodes{state="known", job=%q} >= 1`, job))
	}
	p.await(t, `ALERTS{alertname="NthQueuePoisoned", alertstate="firing"}`)
	judgeDashboard(t, p)
	judgeRules(t, p)
	consumer.Stop(t)
}
