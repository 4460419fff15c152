package systemd_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

// host makes a file system with these files.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFindInstalled_LooksBelowARoot(t *testing.T) {
	const unit = "/usr/lib/systemd/system/nth.service"
	want := systemd.Installed{Unit: unit, DropIn: "/etc/systemd/logind.conf.d/80-nth.conf"}
	root := host(t, map[string]string{unit: "", want.DropIn: "", "/etc/systemd/system/multi-user.target.wants/other.service": ""})
	if got := systemd.FindInstalled(root); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// systemctl enable makes an absolute link, which leads nowhere while the image is not the machine's own root.
	want.Enabled = "/etc/systemd/system/multi-user.target.wants/nth.service"
	if err := os.Symlink("/nowhere"+unit, filepath.Join(root, want.Enabled)); err != nil {
		t.Fatal(err)
	}
	if got := systemd.FindInstalled(root); got != want {
		t.Errorf("enabled: got %+v, want %+v", got, want)
	}
	if got := systemd.FindInstalled(t.TempDir()); got != (systemd.Installed{}) {
		t.Errorf("in an empty root: %+v", got)
	}
}
