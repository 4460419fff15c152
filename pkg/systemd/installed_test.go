package systemd_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

func TestFindInstalled_LooksBelowARoot(t *testing.T) {
	root := t.TempDir()
	if got := systemd.FindInstalled(root); got != (systemd.Installed{}) {
		t.Errorf("in an empty root: %+v", got)
	}
	const unit = "/usr/lib/systemd/system/nth.service"
	for _, path := range []string{unit, "/usr/lib/systemd/catalog/nth.catalog", "/etc/systemd/logind.conf.d/80-nth.conf"} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := systemd.Installed{Unit: unit, Catalog: "/usr/lib/systemd/catalog/nth.catalog", DropIn: "/etc/systemd/logind.conf.d/80-nth.conf"}
	if got := systemd.FindInstalled(root); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// systemctl enable makes an absolute link, which leads nowhere while the image is not the machine's own root.
	want.Enabled = "/etc/systemd/system/multi-user.target.wants/nth.service"
	link := filepath.Join(root, want.Enabled)
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nowhere"+unit, link); err != nil {
		t.Fatal(err)
	}
	if got := systemd.FindInstalled(root); got != want {
		t.Errorf("enabled: got %+v, want %+v", got, want)
	}
}
