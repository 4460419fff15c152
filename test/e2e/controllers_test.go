package e2e

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
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/lab"
)

// The tests in this file are about what Kubernetes' own controllers and admission do to a drain.

// The API server refuses such an eviction with status 500.
func TestBudget_TwoForOnePodHoldItUntilOneIsGone(t *testing.T) {
	t.Parallel()
	s := prepareOn(t, lab.Shared(t), rebalanceDrains)
	s.node.AddDeployment(t, "web", 1)
	for _, name := range []string{"one", "two"} {
		_, err := s.cp.Admin.PolicyV1().PodDisruptionBudgets(s.node.Namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: &intstr.IntOrString{IntVal: 1},
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("making the budget %s: %v", name, err)
		}
	}
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	if said := s.nth.WaitLog(t, systemd.PodHeld).Message; !strings.Contains(said, "more than one PodDisruptionBudget") {
		t.Errorf("nth said %q, want it to say that there is more than one budget", said)
	}
	s.release(t, "one")
	s.nth.WaitSays(t, "disruption budget two blocks the eviction of ")
	s.release(t, "two")
	s.waitDrained(t)
	s.nth.Stop(t)
}

// A node may read which volumes its own pods use, and no others.
func TestVolumes_OfPodsThatStayAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := prepareOn(t, lab.Shared(t), rebalanceDrains)
	inUse := func(volumes ...corev1.UniqueVolumeName) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesInUse": volumes}})
		if err == nil {
			_, err = s.cp.Admin.CoreV1().Nodes().Patch(t.Context(), s.node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		}
		if err != nil {
			t.Fatalf("reporting volumes: %v", err)
		}
	}
	cache, data := s.node.AddVolume(t, "cache"), s.node.AddVolume(t, "data")
	s.node.AddDaemonSet(t, "agent", lab.Uses("cache"))
	s.node.AddPod(t, "db", lab.Uses("data"))
	inUse(cache, data)
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	s.nth.WaitSays(t, "waiting for volumes to be detached: 1 left")
	inUse(cache)
	s.nth.WaitLog(t, systemd.Drained)
	s.nth.Stop(t)
}

// A guard is an admission webhook that refuses evictions until it is made lenient.
type guard struct {
	lenient atomic.Bool
	asked   atomic.Int32
}

func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	g.asked.Add(1)
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: g.lenient.Load()}
	if !review.Response.Allowed {
		review.Response.Result = &metav1.Status{Message: "the ledger is being closed", Code: http.StatusForbidden}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // an API server that has left needs no answer
}

// register has the API server ask the webhook about every eviction of the stage's pods, and returns when it does.
func (g *guard) register(t *testing.T, s *stage) {
	t.Helper()
	server := httptest.NewTLSServer(g)
	t.Cleanup(server.Close)
	path, none := server.URL+"/review", admission.SideEffectClassNone
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
	s.node.AddPod(t, "bait")
	bait := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: s.node.Namespace, Name: "bait"},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	}
	for g.asked.Load() == 0 {
		err := s.cp.Admin.PolicyV1().Evictions(s.node.Namespace).Evict(t.Context(), bait)
		if err != nil && !strings.Contains(err.Error(), "guard.example.com") {
			t.Fatalf("evicting the bait: %v", err)
		}
	}
}

func TestWebhook_ThatRefusesIsAskedAgainUntilItRelents(t *testing.T) {
	t.Parallel()
	s := prepareOn(t, lab.Shared(t), rebalanceDrains)
	g := &guard{}
	g.register(t, s)
	s.watch(t)
	s.imds.SetRebalance(time.Now())
	said := s.nth.WaitLog(t, systemd.PodHeld).Message
	if want := `admission webhook "guard.example.com" denied the request: the ledger is being closed`; !strings.Contains(said, want) {
		t.Errorf("nth said %q, want it to say %q", said, want)
	}
	s.nth.WaitStatus(t, "the ledger is being closed")
	lab.Await(t, "the webhook is asked again", func() bool { return g.asked.Load() >= 5 })
	if n := len(s.nth.Logged(systemd.PodHeld)); n != 1 {
		t.Errorf("nth said %d times that the eviction is refused, want once", n)
	}
	g.lenient.Store(true)
	s.waitDrained(t)
	s.nth.Stop(t)
}
