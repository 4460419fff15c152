package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheManifestIsWhatTheChartComesTo(t *testing.T) {
	text, err := manifest()
	if err != nil {
		t.Fatal(err)
	}
	if text != read(t, "../../../packaging/kubernetes/nth-queue.yaml") {
		t.Error(`packaging/kubernetes/nth-queue.yaml is not what the chart comes to: run "make manifest"`)
	}
	rights := read(t, "../../../packaging/kubernetes/nth-queue-rbac.yaml")
	if !strings.Contains(text, strings.TrimSpace(rights)) {
		t.Error("the rights are others than those of nth-queue-rbac.yaml")
	}
	for _, placeholder := range []string{`image: "IMAGE"`, `url = "QUEUE_URL"`} {
		if strings.Count(text, placeholder) != 1 {
			t.Errorf("%s is not there once", placeholder)
		}
	}
}

func TestTheChartNeedsAnImageAndAQueue(t *testing.T) {
	for missing, values := range map[string]map[string]any{
		"image": {"queueURL": "https://sqs.example/q"}, "queueURL": {"image": "registry.example/nth-queue:v1"},
	} {
		if _, err := render("kube-system", values); err == nil || !strings.Contains(err.Error(), missing+": ") {
			t.Errorf("without %s it comes to %v", missing, err)
		}
	}
}

func TestTheValuesOfTheChartAreTakenIn(t *testing.T) {
	values := map[string]any{
		"image": "registry.example/nth-queue:v1", "queueURL": "https://sqs.example/q", "replicas": 3,
		"roleARN": "arn:aws:iam::123456789012:role/nth-queue", "settings": "[fleet]\nmax_draining = 5\n",
	}
	files, err := render("queues", values)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"service-account.yaml": `eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/nth-queue"`,
		"settings.yaml":        "  50-site.toml: |\n    [fleet]\n    max_draining = 5\n",
		"rbac.yaml":            "namespace: queues",
		"flow-control.yaml":    "namespace: queues",
		"deployment.yaml":      "checksum/settings: ",
	} {
		if !strings.Contains(files["nth-queue/templates/"+file], text) {
			t.Errorf("%s has no %q:\n%s", file, text, files["nth-queue/templates/"+file])
		}
	}
	for file, text := range files {
		if strings.Contains(text, "kube-system") && file != "nth-queue/templates/flow-control.yaml" {
			t.Errorf("%s names kube-system, and it is for another namespace", file)
		}
	}
	values["settings"] = ""
	others, err := render("queues", values)
	if err != nil {
		t.Fatal(err)
	}
	if others["nth-queue/templates/deployment.yaml"] == files["nth-queue/templates/deployment.yaml"] {
		t.Error("other settings bring about no new pods")
	}
}

// Helm keeps a release in its namespace, so that it has to be there before. What is there already, Helm does not make.
func TestTheNamespaceOfTheLeasesIsMadeUnlessTheReleaseIsInIt(t *testing.T) {
	values := map[string]any{"image": "registry.example/nth-queue:v1", "queueURL": "https://sqs.example/q"}
	for namespace, made := range map[string]int{"kube-system": 1, "queues": 1, "nth-queue": 0} {
		files, err := render(namespace, values)
		if err != nil {
			t.Fatal(err)
		}
		rights := files["nth-queue/templates/rbac.yaml"]
		if got := strings.Count(rights, "kind: Namespace"); got != made {
			t.Errorf("in the namespace %s, the release makes %d namespaces, want %d:\n%s", namespace, got, made, rights)
		}
		kinds := []string{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
		for document := range strings.SplitSeq(rights, "---\n") {
			i := slices.IndexFunc(kinds, func(kind string) bool { return strings.Contains(document, "\nkind: "+kind+"\nmetadata:") })
			if i < 0 && !strings.Contains(document, "kind: Namespace") {
				t.Errorf("in the namespace %s, there is this among the rights:\n%s", namespace, document)
			}
			if i >= 0 {
				kinds = slices.Delete(kinds, i, i+1)
			}
		}
		if len(kinds) > 0 {
			t.Errorf("in the namespace %s, the rights are without a %s:\n%s", namespace, kinds, rights)
		}
	}
}

func TestThePodsRunAsTheUserOfTheImage(t *testing.T) {
	for path, text := range map[string]string{
		"../../../packaging/queue/image": "--user 65532:65532", "../../../packaging/kubernetes/nth-queue.yaml": "runAsUser: 65532\n        runAsGroup: 65532\n",
	} {
		if !strings.Contains(read(t, path), text) {
			t.Errorf("%s has no %q", path, text)
		}
	}
}
