package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// object is what every object of Kubernetes is.
type object interface {
	runtime.Object
	GetName() string
	GetNamespace() string
	GetLabels() map[string]string
	GetAnnotations() map[string]string
}

// decode reads manifests with the types of Kubernetes, and refuses fields that these do not have.
func decode(t *testing.T, text string) (objects []object) {
	t.Helper()
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), monitoringv1.AddToScheme(known)); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	for documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if empty, err := sigsyaml.YAMLToJSON(document); err == nil && string(empty) == "null" {
			continue
		}
		found, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		objects = append(objects, found.(object))
	}
}

// needed has values that are valid with what is given.
func needed(values map[string]any) map[string]any {
	all := map[string]any{"image": "registry.example/nth-queue:v1", "queueURL": "https://sqs.eu-central-1.amazonaws.com/123456789012/q"}
	maps.Copy(all, values)
	return all
}

// install renders the chart for a release in the namespace queues, and returns its objects.
func install(t *testing.T, release string, values map[string]any) []object {
	t.Helper()
	files, err := render(release, "queues", needed(values))
	if err != nil {
		t.Fatal(err)
	}
	delete(files, notes)
	return decode(t, strings.Join(slices.Collect(maps.Values(files)), "\n---\n"))
}

// one returns the one object of a type.
func one[T object](t *testing.T, objects []object) (found T) {
	t.Helper()
	count := 0
	for _, o := range objects {
		if o, is := o.(T); is {
			found, count = o, count+1
		}
	}
	if count != 1 {
		t.Fatalf("there are %d of %T, want one", count, found)
	}
	return found
}

func TestManifest_IsTheChart(t *testing.T) {
	text, err := manifest()
	if err != nil {
		t.Fatal(err)
	}
	if text != read(t, "../../../packaging/kubernetes/nth-queue.yaml") {
		t.Error(`packaging/kubernetes/nth-queue.yaml is not what the chart makes: run "make manifest"`)
	}
	for _, placeholder := range []string{`image: "IMAGE"`, `url = "QUEUE_URL"`} {
		if strings.Count(text, placeholder) != 1 {
			t.Errorf("%s is not in it once", placeholder)
		}
	}
	rights := decode(t, read(t, "../../../packaging/kubernetes/nth-queue-rbac.yaml"))
	made := decode(t, text)
	if got, want := one[*rbacv1.ClusterRole](t, made).Rules, one[*rbacv1.ClusterRole](t, rights).Rules; !slices.EqualFunc(got, want, sameRule) {
		t.Errorf("the ClusterRole has\n%v, want those of nth-queue-rbac.yaml\n%v", got, want)
	}
	role := one[*rbacv1.Role](t, made)
	if want := one[*rbacv1.Role](t, rights); !slices.EqualFunc(role.Rules, want.Rules, sameRule) || role.Namespace != want.Namespace {
		t.Errorf("the Role has\n%v, want those of nth-queue-rbac.yaml\n%v", role.Rules, want.Rules)
	}
}

func sameRule(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }

func TestValues_AreJudged(t *testing.T) {
	for name, row := range map[string]struct {
		values map[string]any
		want   string
	}{
		"no image":            {map[string]any{"image": ""}, "image: the image is required"},
		"no queue":            {map[string]any{"queueURL": ""}, "queueURL: the URL of the queue is required"},
		"a queue of a line":   {map[string]any{"queueURL": "https://sqs.example/q\nx = 1"}, "queueURL"},
		"an unknown value":    {map[string]any{"replica": 3, "foo": "bar"}, "replica"},
		"replicas in words":   {map[string]any{"replicas": "abc"}, "replicas"},
		"a wrong nested name": {map[string]any{"serviceAccount": map[string]any{"annotation": map[string]any{}}}, "annotation"},
		"a list for a map":    {map[string]any{"nodeSelector": []any{"a"}}, "nodeSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := render("nth-queue", "kube-system", needed(row.values)); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("it says %v, want something about %q", err, row.want)
			}
		})
	}
}

func TestValues_AllArrive(t *testing.T) {
	texts := func(key string) map[string]any { return map[string]any{"example.com/" + key: key} }
	objects := install(t, "blue", map[string]any{
		"replicas": 3, "labels": texts("label"), "annotations": texts("annotation"), "podLabels": texts("pod-label"), "podAnnotations": texts("pod-annotation"),
		"imagePullPolicy": "Always", "imagePullSecrets": []any{map[string]any{"name": "registry"}},
		"serviceAccount": map[string]any{"annotations": map[string]any{"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/nth-queue"}},
		"env":            []any{map[string]any{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}},
		"envFrom":        []any{map[string]any{"configMapRef": map[string]any{"name": "proxy"}}},
		"volumes":        []any{map[string]any{"name": "certificates", "emptyDir": map[string]any{}}},
		"volumeMounts":   []any{map[string]any{"name": "certificates", "mountPath": "/certificates"}},
		"webhook":        map[string]any{"secret": "pager", "headersKey": "headers"},
		"nodeSelector":   map[string]any{"pool": "system"}, "tolerations": []any{map[string]any{"key": "system", "operator": "Exists"}},
		"affinity": map[string]any{"nodeAffinity": map[string]any{}}, "priorityClassName": "high", "dnsPolicy": "ClusterFirst",
		"topologySpreadConstraints": []any{map[string]any{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}},
		"resources":                 map[string]any{"limits": map[string]any{"memory": "1Gi"}},
		"networkPolicy":             map[string]any{"metricsFrom": []any{map[string]any{"namespaceSelector": map[string]any{}}}},
		"podMonitor":                map[string]any{"enabled": true, "interval": "1m", "labels": texts("monitor")},
		"prometheusRule":            map[string]any{"enabled": true, "labels": texts("rule")},
	})
	deployment := one[*appsv1.Deployment](t, objects)
	pod, container := deployment.Spec.Template, deployment.Spec.Template.Spec.Containers[0]
	account, settings := one[*corev1.ServiceAccount](t, objects), one[*corev1.ConfigMap](t, objects)
	policy, monitor := one[*networkingv1.NetworkPolicy](t, objects), one[*monitoringv1.PodMonitor](t, objects)
	rule := one[*monitoringv1.PrometheusRule](t, objects)
	hasEnv := func(name string) bool {
		return slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	}
	hasMount := func(name, path string) bool {
		return slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name && m.MountPath == path }) &&
			slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	}
	for what, is := range map[string]bool{
		"replicas":         *deployment.Spec.Replicas == 3,
		"pod labels":       pod.Labels["example.com/pod-label"] != "" && pod.Labels["example.com/label"] != "",
		"pod annotations":  pod.Annotations["example.com/pod-annotation"] != "" && pod.Annotations["example.com/annotation"] != "" && pod.Annotations["checksum/settings"] != "",
		"pull":             container.ImagePullPolicy == corev1.PullAlways && pod.Spec.ImagePullSecrets[0].Name == "registry",
		"role":             account.Annotations["eks.amazonaws.com/role-arn"] != "",
		"env":              hasEnv("HTTPS_PROXY") && hasEnv("NODE_NAME") && container.EnvFrom[0].ConfigMapRef.Name == "proxy",
		"volumes":          hasMount("certificates", "/certificates") && hasMount("webhook", "/etc/nth/webhook"),
		"webhook":          strings.Contains(settings.Data["10-pod.toml"], "[webhook]\nurl_file = \"/etc/nth/webhook/url\"\nheaders_file = \"/etc/nth/webhook/headers\"\n"),
		"scheduling":       pod.Spec.NodeSelector["pool"] == "system" && len(pod.Spec.Tolerations) == 1 && pod.Spec.PriorityClassName == "high",
		"affinity":         pod.Spec.Affinity.PodAntiAffinity == nil && pod.Spec.TopologySpreadConstraints[0].TopologyKey == "rack",
		"DNS":              pod.Spec.DNSPolicy == corev1.DNSClusterFirst,
		"resources":        container.Resources.Limits.Memory().String() == "1Gi",
		"network policy":   len(policy.Spec.Ingress) == 1 && len(policy.Spec.Ingress[0].Ports) == 1 && len(policy.Spec.Ingress[0].From) == 1,
		"pod monitor":      monitor.Labels["example.com/monitor"] != "" && monitor.Spec.PodMetricsEndpoints[0].Interval == "1m",
		"Prometheus' rule": rule.Labels["example.com/rule"] != "" && len(rule.Spec.Groups) == 1 && len(rule.Spec.Groups[0].Rules) > 5,
	} {
		if !is {
			t.Errorf("the values for the %s have not arrived", what)
		}
	}
	for _, o := range objects {
		if o.GetNamespace() == "" && o.GetName() == "nth-queue" {
			continue // the namespace of the Leases
		}
		if o.GetName() != "blue-nth-queue" || o.GetLabels()["example.com/label"] == "" || o.GetAnnotations()["example.com/annotation"] == "" {
			t.Errorf("%T is called %s, with the labels %v and the annotations %v", o, o.GetName(), o.GetLabels(), o.GetAnnotations())
		}
		if namespace := o.GetNamespace(); namespace != "" && namespace != "queues" && namespace != "nth-queue" {
			t.Errorf("%T is in the namespace %s", o, namespace)
		}
	}
}

func TestNames_FollowTheRelease(t *testing.T) {
	for name, row := range map[string]struct {
		release, want string
		values        map[string]any
	}{
		"the chart's own":    {release: "nth-queue", want: "nth-queue"},
		"with the chart's":   {release: "blue", want: "blue-nth-queue"},
		"another chart name": {release: "blue", want: "blue-drainer", values: map[string]any{"nameOverride": "drainer"}},
		"another name":       {release: "blue", want: "drainer", values: map[string]any{"fullnameOverride": "drainer"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := install(t, row.release, row.values)
			account := one[*corev1.ServiceAccount](t, objects).Name
			binding := one[*rbacv1.ClusterRoleBinding](t, objects)
			if account != row.want || binding.Subjects[0].Name != account || binding.RoleRef.Name != one[*rbacv1.ClusterRole](t, objects).Name ||
				one[*appsv1.Deployment](t, objects).Spec.Template.Spec.ServiceAccountName != account {
				t.Errorf("the service account is %s, and bound is %v to %v; want %s", account, binding.Subjects, binding.RoleRef, row.want)
			}
		})
	}
}

func TestSettings_AreKeptLineByLine(t *testing.T) {
	for name, settings := range map[string]string{
		"plain":                 "[fleet]\nmax_draining = 5\n",
		"first line indented":   "  [fleet]\n  max_draining = 5\n[drain]\nmargin = \"5s\"\n",
		"a comment first":       "   # ours\n[fleet]\nmax_draining = 5\n",
		"a tab":                 "[fleet]\n\tmax_draining = 5\n",
		"an empty line in it":   "[fleet]\n\nmax_draining = 5\n",
		"a template of its own": "[webhook]\ntemplate = \"{{ .Node }}\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			got := one[*corev1.ConfigMap](t, install(t, "blue", map[string]any{"settings": settings})).Data["50-site.toml"]
			if got != settings {
				t.Errorf("they are %q, want %q", got, settings)
			}
		})
	}
}

// Helm keeps a release in its namespace, which therefore exists before, and creates nothing that exists already.
func TestLeaseNamespace_IsCreatedOnce(t *testing.T) {
	for namespace, want := range map[string]bool{"kube-system": true, "queues": true, "nth-queue": false} {
		files, err := render("blue", namespace, needed(nil))
		if err != nil {
			t.Fatal(err)
		}
		created := slices.ContainsFunc(decode(t, files["rbac.yaml"]), func(o object) bool { _, is := o.(*corev1.Namespace); return is })
		if created != want {
			t.Errorf("in the namespace %s, that of the Leases is created: %t, want %t", namespace, created, want)
		}
	}
}

func TestNetworkPolicy_LetsNobodyInByDefault(t *testing.T) {
	objects := install(t, "blue", nil)
	policy, pod := one[*networkingv1.NetworkPolicy](t, objects), one[*appsv1.Deployment](t, objects).Spec.Template
	if len(policy.Spec.Ingress) != 0 || !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
		t.Errorf("it says %+v", policy.Spec)
	}
	for key, value := range policy.Spec.PodSelector.MatchLabels {
		if pod.Labels[key] != value {
			t.Errorf("it is about pods with %s=%s, and these have %v", key, value, pod.Labels)
		}
	}
}

func TestChart_HasTheVersionOfThePackages(t *testing.T) {
	_, version, _ := strings.Cut(read(t, "../../../packaging/changelog.yaml"), "- semver: ")
	version, _, _ = strings.Cut(version, "\n")
	if got := one[*appsv1.Deployment](t, install(t, "blue", nil)).Labels["app.kubernetes.io/version"]; got != version {
		t.Errorf("appVersion is %s, and the packages' is %s", got, version)
	}
}

func TestPods_AreCriticalAndRunAsTheUserOfTheImage(t *testing.T) {
	pod := one[*appsv1.Deployment](t, install(t, "blue", nil)).Spec.Template.Spec
	security := pod.SecurityContext
	if *security.RunAsUser != 65532 || *security.RunAsGroup != 65532 || !strings.Contains(read(t, "../../../packaging/queue/image"), "--user 65532:65532") {
		t.Errorf("they run as %d:%d", *security.RunAsUser, *security.RunAsGroup)
	}
	if pod.PriorityClassName != "system-cluster-critical" || *pod.TerminationGracePeriodSeconds != 30 {
		t.Errorf("they are of %s, with a grace period of %d s", pod.PriorityClassName, *pod.TerminationGracePeriodSeconds)
	}
}

// kube-score is in a module of its own, as it needs other versions of Kubernetes' types than Helm does. Two of its rules are not
// ours: a limit of the processor would slow a drain down, and a registry that does not answer would keep pods from starting.
func TestChart_PassesKubeScore(t *testing.T) {
	files, err := render("nth-queue", "kube-system", needed(nil))
	if err != nil {
		t.Fatal(err)
	}
	delete(files, notes)
	path := filepath.Join(t.TempDir(), "chart.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(slices.Collect(maps.Values(files)), "\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	score := exec.CommandContext(t.Context(), "go", "tool", "kube-score", "score", "--ignore-container-cpu-limit", "--ignore-test", "container-image-pull-policy", path)
	score.Dir, score.Env = "../score", append(os.Environ(), "CGO_ENABLED=0")
	if said, err := score.CombinedOutput(); err != nil || bytes.Contains(said, []byte("[CRITICAL]")) {
		t.Errorf("%v\n%s", err, said)
	}
}
