package lab

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A simulated kubelet reports no boot ID, and that it is Ready for as long as its Node exists. A test that reboots its
// machine says what a real one reports then: until it runs again, what the one before it has said stands.

// KubeletStarts has the node's kubelet report the boot in which it has been started, and that it is not Ready yet.
func (n *Node) KubeletStarts(t TB, bootID string) {
	t.Helper()
	n.patch(t, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, startingLabel))
	n.patchStatus(t, fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q},"conditions":[%s]}}`, bootID, readyCondition("False", "KubeletNotReady")))
}

// KubeletIsReady has the node's kubelet report that it is Ready, in the boot that it has reported last.
func (n *Node) KubeletIsReady(t TB) {
	t.Helper()
	n.patchStatus(t, fmt.Sprintf(`{"status":{"conditions":[%s]}}`, readyCondition("True", "KubeletReady")))
	n.patch(t, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, startingLabel))
}

func readyCondition(status, reason string) string {
	heartbeat := time.Now().Add(time.Second).UTC().Format(time.RFC3339) // which cuts the fraction off
	return fmt.Sprintf(`{"type":"Ready","status":%q,"reason":%q,"message":"the lab says so","lastHeartbeatTime":%q}`, status, reason, heartbeat)
}

func (n *Node) patchStatus(t TB, patch string) {
	t.Helper()
	_, err := n.cp.Admin.CoreV1().Nodes().Patch(t.Context(), n.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("patching the status of %s with %s: %v", n.Name, patch, err)
	}
}
