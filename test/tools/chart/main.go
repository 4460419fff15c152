// Command chart renders the Helm chart of nth-queue into the manifest for those who have no Helm, with Helm's own engine.
//
//	chart MANIFEST
//
// What the chart requires is in the manifest as IMAGE and QUEUE_URL, once each.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// directory is where the chart is, from this one.
const directory = "../../../packaging/helm/nth-queue"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// run is the whole program but for its exit.
func run(args []string) error {
	if len(args) != 1 {
		return errors.New("say where the manifest is to be written to")
	}
	text, err := manifest()
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte(text), 0o644) // everybody may read it
}

const preface = `# nth-queue in a pod, with all that it needs in the cluster. Replace IMAGE and QUEUE_URL, and for IRSA annotate the service
# account. Then: kubectl apply -f nth-queue.yaml
#
# "make manifest" renders it from the chart in packaging/helm; docs/queue.md says more.
`

// manifest is the chart with its default values, for kubectl.
func manifest() (string, error) {
	files, err := render("nth-queue", "kube-system", map[string]any{"image": "IMAGE", "queueURL": "QUEUE_URL", "restart": false})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString(preface)
	for _, name := range slices.SortedFunc(maps.Keys(files), inOrder) {
		if name != notes {
			text.WriteString("---\n" + strings.TrimSpace(files[name]) + "\n")
		}
	}
	// Nobody manages it by Helm.
	return strings.ReplaceAll(text.String(), "app.kubernetes.io/managed-by: Helm\n", "app.kubernetes.io/managed-by: kubectl\n"), nil
}

// notes is the file with what Helm shows after an installation.
const notes = "NOTES.txt"

// inOrder orders files: what others need comes first.
func inOrder(a, b string) int {
	order := []string{
		"service-account.yaml", "rbac.yaml", "flow-control.yaml", "network-policy.yaml", "settings.yaml", "disruption-budget.yaml", "deployment.yaml",
	}
	return slices.Index(order, a) - slices.Index(order, b)
}

// render renders the chart as "helm install RELEASE" would with these values, and returns what its templates make, by their
// file names. One that makes nothing is left out.
func render(release, namespace string, values map[string]any) (map[string]string, error) {
	chart, err := loader.LoadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("reading the chart: %w", err)
	}
	if err := chart.Validate(); err != nil {
		return nil, fmt.Errorf("validating the chart: %w", err)
	}
	options := chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, options, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("reading the chart's values: %w", err)
	}
	rendered, err := engine.Render(chart, all)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	files := map[string]string{}
	for name, text := range rendered {
		if base := path.Base(name); !strings.HasPrefix(base, "_") && strings.TrimSpace(text) != "" {
			files[base] = text
		}
	}
	return files, nil
}
