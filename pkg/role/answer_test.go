package role_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/nth-project/nth/pkg/instances/ec2test"
	"github.com/nth-project/nth/pkg/internal/pipetest"
	"github.com/nth-project/nth/pkg/role"
)

// slow is a connection on which the writer goes on a second after the other side has read.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	time.Sleep(time.Second)
	return n, err
}

// The SDK is done with a request when the answer begins. Whoever still writes it must not take that for a failure, and the rest of the
// answer with it.
func TestAnAnswerThatIsFasterThanTheRequestsEndIsReadWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var region ec2test.Service
		region.Add(ec2test.Instance{ID: "i-1", State: "running"})
		server := pipetest.Serve(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			said := httptest.NewRecorder()
			region.ServeHTTP(said, q)
			whole := said.Body.Bytes()
			for _, part := range [][]byte{whole[:len(whole)/2], whole[len(whole)/2:]} {
				_, _ = w.Write(part) // a client that has left needs no answer
				w.(http.Flusher).Flush()
				time.Sleep(3 * time.Second)
			}
		}))
		defer server.Close()
		cfg, err := role.Config(t.Context(), role.Options{
			Metadata: metadata("eu-central-1"), Endpoint: "http://ec2.test",
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := server.Dial(ctx, network, address)
				return slow{conn}, err
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
		answer, err := ec2.NewFromConfig(cfg).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{"i-1"}})
		if err != nil || len(answer.Reservations) != 1 {
			t.Errorf("the answer is %+v: %v", answer, err)
		}
	})
}
