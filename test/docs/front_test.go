package docs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/tools"
)

// What the front page says was booted is what the lab boots. What its machines are is judged by the tests of test/packages.
func TestTheFrontPageNamesTheKubernetesOfTheLab(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(top, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, suite := range []string{"kubernetes", "kubelet"} {
		version, err := tools.Version(suite)
		if err != nil {
			t.Fatal(err)
		}
		if row := "| Kubernetes | " + strings.TrimPrefix(version, "v") + ": control plane, and kubelet with containerd |"; !strings.Contains(string(page), row) {
			t.Errorf("README.md has no row that begins with %q", row)
		}
	}
	if _, err := tools.Version("none"); err == nil {
		t.Error("there is a version of a suite that is not there")
	}
}
