// Package drain is "kubectl drain" as far as kubectl's own tests of it see it, with pkg/evict to decide which pods go. Those tests are not
// here: the go command is given them from the module cache, as a file of this package.
package drain

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	kubectl "k8s.io/kubectl/pkg/cmd/drain"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/drain"

	"github.com/nth-project/nth/pkg/evict"
)

// NewCmdCordon and NewCmdUncordon are kubectl's: its tests of them do not compile without.
var (
	NewCmdCordon   = kubectl.NewCmdCordon
	NewCmdUncordon = kubectl.NewCmdUncordon
)

// options are the flags that the tests use.
type options struct{ force, deleteEmptyDir, ignoreDaemonSets bool }

// NewCmdDrain returns a command that evicts what nth would evict, and fails if a pod stays for which kubectl refuses to drain. Where the API
// server has no evictions it deletes, as kubectl does: none that nth supports is without.
func NewCmdDrain(f util.Factory, streams genericiooptions.IOStreams) *cobra.Command {
	var o options
	command := &cobra.Command{Use: "drain NODE", Run: func(command *cobra.Command, nodes []string) {
		client, err := f.KubernetesClientSet()
		util.CheckErr(err)
		for _, node := range nodes {
			util.CheckErr(o.drain(command.Context(), client, node, streams))
			fmt.Fprintf(streams.Out, "node/%s drained\n", node)
		}
	}}
	command.Flags().BoolVar(&o.force, "force", false, "")
	command.Flags().BoolVar(&o.deleteEmptyDir, "delete-emptydir-data", false, "")
	command.Flags().BoolVar(&o.ignoreDaemonSets, "ignore-daemonsets", false, "")
	return command
}

func (o options) drain(ctx context.Context, client kubernetes.Interface, node string, streams genericiooptions.IOStreams) error {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node, Limit: 500})
	if err != nil {
		return err
	}
	evictions, err := drain.CheckEvictionSupport(client)
	if err != nil {
		return err
	}
	nth := evict.Options{ProtectUnmanaged: !o.force, ProtectEmptyDir: !o.deleteEmptyDir}
	for _, pod := range pods.Items {
		owner := metav1.GetControllerOf(&pod)
		ofDaemonSet := owner != nil && owner.Kind == "DaemonSet"
		switch stays := nth.Stays(&pod, evict.Terms{Evict: true}); {
		case stays && ofDaemonSet && o.ignoreDaemonSets:
			fmt.Fprintf(streams.ErrOut, "Warning: ignoring DaemonSet-managed Pods: %s\n", evict.Name(&pod))
			continue
		case stays:
			return fmt.Errorf("%s stays", evict.Name(&pod))
		case owner == nil:
			fmt.Fprintf(streams.ErrOut, "Warning: deleting Pods that declare no controller: %s\n", evict.Name(&pod))
		}
		if err := remove(client, &pod, !evictions.Empty()); err != nil {
			return err
		}
	}
	return nil
}

// remove asks once, as the tests count.
func remove(client kubernetes.Interface, pod *corev1.Pod, evictions bool) error {
	helper := drain.Helper{Ctx: context.Background(), Client: client, GracePeriodSeconds: -1}
	if !evictions {
		return helper.DeletePod(*pod)
	}
	return helper.EvictPod(*pod, policyv1.SchemeGroupVersion)
}
