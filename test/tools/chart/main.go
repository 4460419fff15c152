// Command chart renders the Helm chart of nth-queue into the manifest for those who have no Helm, with Helm's own engine.
//
//	chart MANIFEST
//
// What the chart needs to be told is in the manifest as IMAGE and QUEUE_URL, once each.
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

const preface = `# nth-queue in a pod, with all that it needs in the cluster: put in where the image is, for IMAGE, and the URL of the queue,
# for QUEUE_URL, and for IRSA the service account's annotation. Then kubectl apply -f nth-queue.yaml
#
# This is what the chart in packaging/helm comes to, by "make manifest"; docs/queue.md says more.
`

// manifest is the chart with the values that it has, for a kubectl.
func manifest() (string, error) {
	files, err := render("kube-system", map[string]any{"image": "IMAGE", "queueURL": "QUEUE_URL", "restart": false})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	text.WriteString(preface)
	for _, name := range slices.SortedFunc(maps.Keys(files), inOrder) {
		text.WriteString("---\n" + strings.TrimSpace(files[name]) + "\n")
	}
	// Nobody has managed it by Helm.
	return strings.ReplaceAll(text.String(), "app.kubernetes.io/managed-by: Helm\n", "app.kubernetes.io/managed-by: kubectl\n"), nil
}

// inOrder orders templates: what others need comes first.
func inOrder(a, b string) int {
	order := []string{"service-account.yaml", "rbac.yaml", "flow-control.yaml", "settings.yaml", "disruption-budget.yaml", "deployment.yaml"}
	return slices.Index(order, path.Base(a)) - slices.Index(order, path.Base(b))
}

// render renders the chart as "helm install nth-queue" would with these values, and returns what its templates come to, by
// their names.
func render(namespace string, values map[string]any) (map[string]string, error) {
	chart, err := loader.LoadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("reading the chart: %w", err)
	}
	if err := chart.Validate(); err != nil {
		return nil, fmt.Errorf("judging the chart: %w", err)
	}
	release := chartutil.ReleaseOptions{Name: "nth-queue", Namespace: namespace, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("taking in the chart's values: %w", err)
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(path.Base(name), "_") })
	if len(files) == 0 {
		return nil, errors.New("the chart has no templates")
	}
	return files, nil
}
