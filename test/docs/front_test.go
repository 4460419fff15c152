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
	for suite, words := range map[string]string{"kubernetes": "control plane", "kubelet": "control plane, and kubelet with containerd"} {
		version, err := tools.Version(suite)
		if err != nil {
			t.Fatal(err)
		}
		if text := " " + strings.TrimPrefix(version, "v") + ": " + words; !strings.Contains(string(page), text) {
			t.Errorf("README.md has no row with %q", text)
		}
	}
	if _, err := tools.Version("none"); err == nil {
		t.Error("there is a version of a suite that is not there")
	}
}
