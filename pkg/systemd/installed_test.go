package systemd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

func TestFindInstalled_LooksBelowARoot(t *testing.T) {
	const unit = "/usr/lib/systemd/system/nth.service"
	want := systemd.Installed{Unit: unit, DropIn: "/etc/systemd/logind.conf.d/80-nth.conf"}
	root := t.TempDir()
	for _, path := range []string{unit, want.DropIn, "/etc/systemd/system/multi-user.target.wants/other.service"} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
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
