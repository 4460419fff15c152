package faults_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admission "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// rebalanceDrains has nth drain, without a deadline, when EC2 recommends to rebalance.
const rebalanceDrains = "[events.rebalance-recommendation]\naction = \"drain\"\n"

// A guard is an admission webhook for evictions, registered with the API server.
type guard struct {
	lenient atomic.Bool
	asked   tally
}

// guardEvictions has the API server ask a webhook about every eviction of the scene's pods. It refuses them until it is
// made lenient.
func (s *scene) guardEvictions(t *testing.T) *guard {
	t.Helper()
	g := &guard{}
	server := httptest.NewTLSServer(http.HandlerFunc(g.review))
	t.Cleanup(server.Close)
	path := server.URL + "/review"
	none := admission.SideEffectClassNone
	client := s.cp.Admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	webhook := &admission.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "guard-" + s.node.Namespace},
		Webhooks: []admission.ValidatingWebhook{{
			Name: "guard.example.com",
			ClientConfig: admission.WebhookClientConfig{
				URL:      &path,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admission.RuleWithOperations{{
				Operations: []admission.OperationType{admission.Create},
				Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.node.Namespace}},
			SideEffects:             &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	if _, err := client.Create(t.Context(), webhook, metav1.CreateOptions{}); err != nil {
		t.Fatalf("registering the webhook: %v", err)
	}
	t.Cleanup(func() {
		if err := client.Delete(context.WithoutCancel(t.Context()), webhook.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("removing the webhook: %v", err)
		}
	})
	return g
}

func (g *guard) review(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	g.asked.add()
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: g.lenient.Load()}
	if !review.Response.Allowed {
		review.Response.Result = &metav1.Status{Message: "the ledger is being closed", Code: http.StatusForbidden}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // an API server that has left needs no answer
}

// awaitRegistered waits until the API server asks the webhook, which it does a moment after it was registered.
func (g *guard) awaitRegistered(t *testing.T, s *scene) {
	t.Helper()
	s.node.AddPod(t, "bait")
	bait := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: s.node.Namespace, Name: "bait"},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	}
	for count := 0; count == 0; count, _ = g.asked.read() {
		err := s.cp.Admin.PolicyV1().Evictions(s.node.Namespace).Evict(t.Context(), bait)
		if err != nil && !strings.Contains(err.Error(), "guard.example.com") {
			t.Fatalf("evicting the bait: %v", err)
		}
	}
}

func TestEvict_IsRepeatedUntilAWebhookRelents(t *testing.T) {
	s := newScene(t, rebalanceDrains)
	g := s.guardEvictions(t)
	g.awaitRegistered(t, s)
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	said := s.nth.WaitLog(t, systemd.PodHeld).Message
	if want := `admission webhook "guard.example.com" denied the request: the ledger is being closed`; !strings.Contains(said, want) {
		t.Errorf("nth said %q, want it to say %q", said, want)
	}
	s.nth.WaitStatus(t, "0 of 1 pod gone")
	s.nth.WaitStatus(t, "the ledger is being closed")
	g.asked.await(t, 3)
	if n := len(s.nth.Logged(systemd.PodHeld)); n != 1 {
		t.Errorf("nth said %d times that the eviction is refused, want once", n)
	}
	g.lenient.Store(true)
	s.waitDrained(t)
	s.nth.Stop(t)
}

func TestAWebhookThatNeverRelentsGivesWayBeforeAHardDeadline(t *testing.T) {
	s := newScene(t, "")
	g := s.guardEvictions(t)
	g.awaitRegistered(t, s)
	s.watch(t)
	s.imds.SetSpot("terminate", time.Now().Add(40*time.Second)) // the pod's grace is 30 s
	s.nth.WaitLog(t, systemd.PodHeld)
	s.waitDrained(t)
	s.nth.Stop(t)
	if e := s.remembered(t); e.Phase != state.Drained || e.Result == nil || e.Result.Deleted != 1 || e.Result.Evicted != 0 {
		t.Errorf("nth remembers %s %+v, want the pod deleted", e.Phase, e.Result)
	}
}
