package demo

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// verdict tells everything that keeps a node from having been drained in time.
func verdict(node *corev1.Node, pods []corev1.Pod, left time.Duration) error {
	var faults []error
	if !node.Spec.Unschedulable {
		faults = append(faults, errors.New("the node is not cordoned"))
	}
	for _, pod := range pods {
		if lab.Evictable(&pod) {
			faults = append(faults, fmt.Errorf("pod %s is still on the node", pod.Name))
		}
	}
	if left < 0 {
		faults = append(faults, fmt.Errorf("the drain ended %s after the machine", seconds(-left)))
	}
	return errors.Join(faults...)
}

func (s *scene) summarize(p *page, n *narrator, left time.Duration) {
	p.say(strong, "In short")
	p.item("cordoned", fmt.Sprintf("%d ms after the notice", n.cordonedAt.Milliseconds()))
	p.item("pods", fmt.Sprintf("%d of %d gone, the last one %s after the notice", n.gone, len(s.evictable), seconds(n.lastGone)))
	p.item("left alone", strings.Join(s.staying, ", "))
	p.item("budgets", n.budgets())
	p.item("time left", fmt.Sprintf("%.1f s of the two minutes", left.Seconds()))
}

// show prints the node as its owner would see it.
func (s *scene) show(t lab.TB, p *page) {
	for _, args := range [][]string{
		{"get", "node", s.node.Name},
		{"get", "pods", "-A", "--field-selector", "spec.nodeName=" + s.node.Name},
	} {
		p.say(plain, "")
		p.say(faint, "  $ kubectl %s", strings.Join(args, " "))
		out, err := s.kubectl(t.Context(), args...)
		if err != nil {
			t.Fatalf("%v", err)
		}
		p.block(out)
	}
	p.say(plain, "")
}

func (s *scene) kubectl(ctx context.Context, args ...string) (string, error) {
	path, err := tools.Path("kubectl")
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, path, append([]string{"--kubeconfig=" + s.cp.Kubeconfig}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// verdict writes what it comes to.
func (p *page) verdict(fault error) {
	if fault != nil {
		p.say(bad, "Not drained: this is not as it should be.")
		return
	}
	p.say(good, "Drained in time: the node is cordoned, and nothing is left on it that could be moved.")
}

// invite says how to look around, and waits until the person has seen enough.
func (s *scene) invite(t lab.TB, p *page) {
	path, err := tools.Path("kubectl")
	if err != nil {
		t.Fatalf("%v", err)
	}
	p.say(plain, "The cluster stays until you press Ctrl-C. In another terminal:")
	p.say(plain, "  export KUBECONFIG=%s", s.cp.Kubeconfig)
	p.say(plain, "  %s get nodes", path)
	p.say(plain, "")
	<-t.Context().Done()
}
