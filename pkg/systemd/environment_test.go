package systemd_test

import (
	"os"
	"path/filepath"
	"slices"
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

func TestTheEnvironmentOfAServiceIsReadFromItsFiles(t *testing.T) {
	root := host(t, map[string]string{
		"usr/lib/systemd/system/kubelet.service":                      "[Unit]\nEnvironment=NO=1\n[Service]\nEnvironment=A=unit B=unit\nEnvironmentFile=-/etc/eks/kubelet/environment\n",
		"usr/lib/systemd/system/kubelet.service.d/10-a.conf":          "[Service]\nEnvironment=A=overridden\n",
		"etc/systemd/system/kubelet.service.d/10-a.conf":              "[Service]\nEnvironment=A=10\n",
		"etc/systemd/system/kubelet.service.d/environment.conf":       "[Service]\nEnvironment=\"HTTPS_PROXY=http://proxy.test:3128\" 'NO_PROXY=a, b'\\\n  C=\\\"d\n",
		"etc/systemd/system/kubelet.service.d/not-one.txt":            "[Service]\nEnvironment=A=not-one\n",
		"etc/systemd/system/snap.kubelet-eks.daemon.service.d/a.conf": "[Service]\nEnvironment=A=drop-in-of-nothing\n",
	})
	service, variables, files, err := systemd.ReadEnvironment(root, "snap.kubelet-eks.daemon.service", "kubelet.service")
	want := []string{"A=unit", "B=unit", "A=10", "HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=a, b", `C="d`}
	if err != nil || service != "kubelet.service" || !slices.Equal(variables, want) || !slices.Equal(files, []string{"/etc/eks/kubelet/environment"}) {
		t.Errorf("of %s it reads %q and %q, %v", service, variables, files, err)
	}
	if service, variables, files, err := systemd.ReadEnvironment(root, "none.service"); service != "" || len(variables)+len(files) != 0 || err != nil {
		t.Errorf("of a service that is not there: %q, %q and %q, %v", service, variables, files, err)
	}
}

func TestADropInTakesBackWhatCameBeforeIt(t *testing.T) {
	root := host(t, map[string]string{
		"etc/systemd/system/kubelet.service":          "[Service]\nEnvironment=A=1\nEnvironmentFile=/a\n",
		"etc/systemd/system/kubelet.service.d/a.conf": "[Service]\nEnvironment=\nEnvironment=B=2\nEnvironmentFile=\n",
	})
	_, variables, files, err := systemd.ReadEnvironment(root, "kubelet.service")
	if err != nil || !slices.Equal(variables, []string{"B=2"}) || len(files) != 0 {
		t.Errorf("it reads %q and %q, %v", variables, files, err)
	}
}

func TestAnEnvironmentFileIsReadAsSystemdDoes(t *testing.T) {
	root := host(t, map[string]string{
		"etc/a.env": "# a comment\n; another\n\nA=1\n B = two words \nC=\"in quotes\"\nD='in \"others\"'\nnothing\nE=on \\\ntwo lines\nF=\n",
		"etc/b.env": "A=2\n",
	})
	got, err := systemd.ReadEnvironmentFiles(root, []string{"/etc/none", "/etc/*.env"})
	want := []string{"A=1", "B=two words", "C=in quotes", `D=in "others"`, "E=on two lines", "F=", "A=2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("it reads %q, %v, want %q", got, err, want)
	}
	if _, err := systemd.ReadEnvironmentFiles(root, []string{"/etc"}); err == nil {
		t.Error("a directory was read")
	}
}
