// Package region is an AWS region for nth-queue: SQS as others have written it, and stand-ins of our own for EC2 and Auto
// Scaling, all behind one address.
//
//	r := region.New(t)
//	node, instance := r.AddInstance(t, controlPlane)
//	r.Send(t, region.Spot(instance))
//
// The queue is one of fauxqs (an emulator from npm that knows nothing of nth). What passes on the way there can be
// seen: front.go. The messages are those that AWS sends: messages.go.
package region

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubetypes "k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/test/internal/lab"
)

// Name is the region's.
const Name = "eu-central-1"

// Region is a region with one queue.
type Region struct {
	Groups *asgtest.Service
	EC2    *ec2test.Service
	// URL is the address of all services, and QueueURL the queue's.
	URL, QueueURL string

	queue *sqs.Client // which goes to the peer, past what a test sees

	mu       sync.Mutex
	received map[string]Message // by receipt handle
	deleting func(Message)
}

// Message is a message as a consumer received it.
type Message struct{ ID, Body string }

// New opens a region with an empty queue, which ends with the test.
func New(t lab.TB) *Region {
	t.Helper()
	r := &Region{
		Groups: asgtest.New(), EC2: &ec2test.Service{},
		received: map[string]Message{},
	}
	url, err := peer()
	if err != nil {
		t.Fatalf("starting an SQS: %v", err)
	}
	r.queue = sqs.New(sqs.Options{BaseEndpoint: &url, Region: Name, Credentials: aws.AnonymousCredentials{}})
	made, err := r.queue.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(fmt.Sprintf("interruptions-%d", queues.Add(1)))})
	if err != nil {
		t.Fatalf("making a queue: %v", err)
	}
	r.QueueURL = *made.QueueUrl
	front := httptest.NewServer(r.front(url))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	r.URL = front.URL
	return r
}

var queues atomic.Int64

// Send puts messages into the queue, ten at a time.
func (r *Region) Send(t lab.TB, bodies ...string) {
	t.Helper()
	for some := range slices.Chunk(bodies, 10) {
		var entries []types.SendMessageBatchRequestEntry
		for i, body := range some {
			entries = append(entries, types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: &body})
		}
		sent, err := r.queue.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: &r.QueueURL, Entries: entries})
		if err != nil || len(sent.Failed) > 0 {
			t.Fatalf("sending messages: %v, %+v", err, sent)
		}
	}
}

// Count returns how many messages can be seen, and how many are being worked on.
func (r *Region) Count(t lab.TB) (visible, inFlight int) {
	t.Helper()
	counts := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	answer, err := r.queue.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &r.QueueURL, AttributeNames: counts})
	if err == nil {
		_, err = fmt.Sscan(answer.Attributes[string(counts[0])]+" "+answer.Attributes[string(counts[1])], &visible, &inFlight)
	}
	if err != nil {
		t.Fatalf("counting messages: %v", err)
	}
	return visible, inFlight
}

// WaitEmpty waits until no message is left, neither visible nor in flight.
func (r *Region) WaitEmpty(t lab.TB) {
	t.Helper()
	lab.Await(t, "the queue is empty", func() bool {
		visible, inFlight := r.Count(t)
		return visible+inFlight == 0
	})
}

var instances atomic.Int64

// NewInstance is the ID of an instance that nobody has named yet. EC2 says that it runs, at that private address, and has those tags.
func (r *Region) NewInstance(address string, tags map[string]string) string {
	id := fmt.Sprintf("i-%017x", instances.Add(1))
	r.EC2.Add(ec2test.Instance{ID: id, State: "running", Address: address, Tags: tags})
	return id
}

// AddInstance adds a node that says which instance of the region it is.
func (r *Region) AddInstance(t lab.TB, cp *lab.ControlPlane, tags map[string]string) (*lab.Node, string) {
	t.Helper()
	node := cp.AddNode(t)
	id := r.NewInstance("", tags)
	Bind(t, cp, node, id)
	return node, id
}

// Bind lets a node say which instance it is.
func Bind(t lab.TB, cp *lab.ControlPlane, node *lab.Node, instance string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"providerID": ProviderID(instance)}})
	if err == nil {
		_, err = cp.Admin.CoreV1().Nodes().Patch(t.Context(), node.Name, kubetypes.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		t.Fatalf("giving %s a provider ID: %v", node.Name, err)
	}
}

// ProviderID is what a Node says of its instance.
func ProviderID(instance string) string { return "aws:///" + Name + "a/" + instance }

// services answers what is not SQS's: the query protocol, in which the action says whose it is.
func (r *Region) services(w http.ResponseWriter, request *http.Request) {
	if err := request.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch request.PostForm.Get("Action") {
	case "DescribeInstances", "DescribeInstanceStatus", "RebootInstances", "StopInstances", "StartInstances", "TerminateInstances":
		r.EC2.ServeHTTP(w, request)
	default:
		r.Groups.ServeHTTP(w, request)
	}
}
