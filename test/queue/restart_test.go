package queue_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/region"
)

// mayRestart gives a scene's process the rights that fleet.restart_wait takes beside those of the manifest.
func (s *scene) mayRestart(t *testing.T) {
	t.Helper()
	const user = "nth-queue-that-restarts"
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"replicasets"}, Verbs: []string{"get"}},
		{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets"}, Verbs: []string{"get", "patch"}},
	}}
	role, err := s.cp.Admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.cp.Admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.kubeconfig = s.cp.AddUser(t, user, "nth-queue").Kubeconfig
}

// asks has a workload's pods ask for another one first.
var asks = lab.Edit(func(pod *corev1.PodTemplateSpec) {
	pod.Annotations = map[string]string{"nth-project.github.io/evict": "after-restart"}
})

// Its disruption budget grants no eviction: without the restart it would end with the machine.
func TestAPodIsReplacedByARestartOfItsWorkloadBeforeItsMachineGoes(t *testing.T) {
	t.Parallel()
	for kind, add := range map[string]func(n *lab.Node){
		"Deployment":  func(n *lab.Node) { n.AddDeployment(t, "web", 1, asks, lab.MinAvailable(1)) },
		"StatefulSet": func(n *lab.Node) { n.AddStatefulSet(t, "web", 1, asks, lab.MinAvailable(1)) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.mayRestart(t)
			node, id := s.add(t)
			add(node)
			spare := node.AddSpare(t)
			consumer := s.start(t, "[fleet]\nrestart_wait = \"10m\"\n")

			s.Send(t, region.Spot(id))

			consumer.WaitSays(t, kind+" "+node.Namespace+"/web is restarted, for its pods on the node")
			node.WaitEmpty(t)
			spare.WaitForPods(t, "another pod stands there", func(pods []*corev1.Pod) bool {
				return len(pods) == 1 && pods[0].Annotations["kubectl.kubernetes.io/restartedAt"] != ""
			})
			s.WaitEmpty(t)
			consumer.Stop(t)
		})
	}
}

func TestOneRestartServesTheNodesThatTwoProcessesDrainBesideEachOther(t *testing.T) {
	t.Parallel()
	apart := lab.Edit(func(pod *corev1.PodTemplateSpec) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}},
		}}
	})
	s := newScene(t)
	s.mayRestart(t)
	first, one := s.add(t)
	first.AddDeployment(t, "web", 1, asks, apart)
	second := first.AddSpare(t)
	two := s.NewInstance(second.Name, nil)
	region.Bind(t, s.cp, second, two)
	s.early.expect(two, second.Name)
	first.Scale(t, "web", 2)
	second.WaitForPods(t, "the second pod is there", func(pods []*corev1.Pod) bool { return len(pods) == 1 })
	// People have closed both: what replaces one pod must not come to the other's node before that is closed.
	first.Cordon(t)
	second.Cordon(t)
	spares := []*lab.Node{first.AddSpare(t), first.AddSpare(t)}
	const settings = "[fleet]\nrestart_wait = \"10m\"\n"
	consumers := []*daemon.Daemon{s.start(t, settings), s.start(t, settings)}

	s.Send(t, region.Spot(one), region.Spot(two))

	first.WaitEmpty(t)
	second.WaitEmpty(t)
	for _, spare := range spares {
		spare.WaitForPods(t, "another pod stands there", func(pods []*corev1.Pod) bool { return len(pods) == 1 })
	}
	s.WaitEmpty(t)
	for _, consumer := range consumers {
		consumer.Stop(t)
	}
	deployment, err := s.cp.Admin.AppsV1().Deployments(first.Namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// It was made, scaled, and restarted.
	if at := deployment.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"]; at == "" || deployment.Generation != 3 {
		t.Errorf("it is restarted at %q, and the generation %d, want 3", at, deployment.Generation)
	}
}
