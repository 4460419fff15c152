package main_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	nthqueue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/fleet"
	"github.com/nth-project/nth/pkg/sqs"
)

func TestAProcessWithoutALeaseIsNotHealthy(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the namespace is not there")
	})
	client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
		none := watch.NewFakeWithChanSize(1, false)
		none.Action(watch.Bookmark, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
		return true, none, nil
	})
	logger, _ := logtest.NewNullLogger()
	log := logrus.NewEntry(logger)
	nodes := fleet.New(fleet.Options{Client: client, Log: log})
	health := nthqueue.Health(sqs.New(sqs.Options{}), nodes, log)
	ask := func() *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		health.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
		return answer
	}
	if answer := ask(); answer.Code != http.StatusOK {
		t.Errorf("before it has asked for a Lease the answer is %d: %s", answer.Code, answer.Body)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		nodes.Run(ctx, func() { t.Error("it takes messages") })
	}()
	for deadline := time.Now().Add(time.Minute); nodes.LeaseError() == nil && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if answer := ask(); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "the namespace is not there") {
		t.Errorf("without a Lease the answer is %d: %s", answer.Code, answer.Body)
	}
	if !nodes.Paused() {
		t.Error("messages are received")
	}
	stop()
	<-ended
}
