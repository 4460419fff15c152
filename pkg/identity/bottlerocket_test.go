package identity_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/identity"
)

func TestBottlerocket_ContainerIsKnownByItsMounts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if c, found := identity.FindContainer(root); found {
		t.Errorf("an empty directory is the host container %+v", c)
	}
	for _, dir := range []string{".bottlerocket/host-containers/current", ".bottlerocket/rootfs"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		c, found := identity.FindContainer(root)
		folder := filepath.Join(root, ".bottlerocket/host-containers/current")
		if !found || filepath.Dir(c.UserData) != folder || filepath.Dir(c.StateDirectory) != folder {
			t.Errorf("the settings are in %s, the memory in %s", c.UserData, c.StateDirectory)
		}
		if superpowered := strings.HasSuffix(dir, "rootfs"); superpowered != (c.Host == filepath.Join(root, dir)) {
			t.Errorf("with %s, the host's files are at %q", dir, c.Host)
		}
	}
}
