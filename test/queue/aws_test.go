package queue

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// sqs is a queue that somebody may consume, with the other services of its region behind the same address.
type sqs struct {
	*sqstest.Server
	groups *asgtest.Service
	ec2    *ec2test.Service
	url    string
}

func newQueue(t *testing.T) sqs {
	q := sqs{Server: sqstest.New(), groups: asgtest.New(), ec2: &ec2test.Service{}}
	t.Cleanup(q.Close)
	services := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" {
			q.ServeHTTP(w, r)
			return
		}
		if err := r.ParseForm(); err == nil && strings.HasPrefix(r.PostForm.Get("Action"), "DescribeInstance") {
			q.ec2.ServeHTTP(w, r)
			return
		}
		q.groups.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		services.CloseClientConnections()
		services.Close()
	})
	q.url = services.URL
	return q
}

// start starts an nth-queue with the administrator's identity, and settings in TOML.
func (q sqs) start(t *testing.T, settings string) *daemon.Daemon {
	t.Helper()
	consumer := daemon.StartQueue(t, daemon.QueueOptions{
		Kubeconfig: lab.Shared(t).Kubeconfig, URL: q.URL(), Endpoint: q.url, Settings: settings,
	})
	t.Cleanup(func() {
		if t.Failed() {
			consumer.Dump()
		}
	})
	consumer.WaitStatus(t, "reading the queue")
	return consumer
}

// waitEmpty waits until no message is left, neither visible nor in flight.
func (q sqs) waitEmpty(t *testing.T) {
	t.Helper()
	eventually(t, "the queue is empty", func() bool { return q.Visible()+q.InFlight() == 0 })
}
