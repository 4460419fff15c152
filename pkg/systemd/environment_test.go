package systemd_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

func TestReadEnvironment_AppliesDropIns(t *testing.T) {
	root := host(t, map[string]string{
		"usr/lib/systemd/system/kubelet.service":                      "[Unit]\nEnvironment=NO=1\n[Service]\nEnvironment=A=unit B=unit\nEnvironmentFile=-/etc/eks/kubelet/environment\n",
		"usr/lib/systemd/system/kubelet.service.d/10-a.conf":          "[Service]\nEnvironment=A=overridden\n",
		"etc/systemd/system/kubelet.service.d/10-a.conf":              "[Service]\nEnvironment=A=10\n",
		"etc/systemd/system/kubelet.service.d/environment.conf":       "[Service]\nEnvironment=\"HTTPS_PROXY=http://proxy.test:3128\" 'NO_PROXY=a, b'\\\n  C=\"\" D=100%%\n",
		"etc/systemd/system/kubelet.service.d/not-one.txt":            "[Service]\nEnvironment=A=not-one\n",
		"etc/systemd/system/snap.kubelet-eks.daemon.service.d/a.conf": "[Service]\nEnvironment=A=drop-in-of-nothing\n",
		"etc/systemd/system/reset.service":                            "[Service]\nEnvironment=A=1\nEnvironmentFile=/a\nEnvironment=\nEnvironmentFile=\n Environment = B=2\t\n# Environment=C=3\n",
	})
	for _, test := range []struct {
		services         []string
		service          string
		variables, files []string
	}{
		{
			[]string{"snap.kubelet-eks.daemon.service", "kubelet.service"}, "kubelet.service",
			[]string{"A=unit", "B=unit", "A=10", "HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=a, b", "C=", "D=100%"}, []string{"/etc/eks/kubelet/environment"},
		},
		{[]string{"reset.service"}, "reset.service", []string{"B=2"}, nil},
		{[]string{"none.service"}, "", nil, nil},
	} {
		service, variables, files, err := systemd.ReadEnvironment(root, test.services...)
		if service != test.service || !slices.Equal(variables, test.variables) || !slices.Equal(files, test.files) || err != nil {
			t.Errorf("of %q it reads %q: %q and %q, %v", test.services, service, variables, files, err)
		}
	}
}

func TestReadEnvironmentFiles_ReadsEachVariable(t *testing.T) {
	root := host(t, map[string]string{
		"etc/a.env": "# a comment\n ; another\n\nA=1 # no comment\r\n B = two words \nC=\"in quotes\"\nD='in \"others\"'\nnothing\nE=on \\\n two lines\nF=\nG=it's\nH=\"",
		"etc/b.env": "A=2\n",
	})
	got, err := systemd.ReadEnvironmentFiles(root, []string{"/etc/none", "/etc/*.env"})
	want := []string{"A=1 # no comment", "B=two words", "C=in quotes", `D=in "others"`, "E=on two lines", "F=", "G=it's", `H="`, "A=2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("it reads %q, %v, want %q", got, err, want)
	}
	if err := syscall.Mkfifo(filepath.Join(root, "etc/c.env"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/etc": "is a directory", "/etc/c.env": "/etc/c.env: it is no file"} { // Who opens a pipe waits for a writer.
		if got, err := systemd.ReadEnvironmentFiles(root, []string{path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %s it reads %q, %v", path, got, err)
		}
	}
}

// systemd ignores a line that it does not understand, and takes lines of up to a mebibyte.
func TestReadEnvironment_ReadsWhatSystemdReads(t *testing.T) {
	long := "NO_PROXY=" + strings.Repeat("10.0.0.0/8,", 1000)
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"a long line":                   {"[Service]\nEnvironment=" + long + "\nEnvironment=B=2\n", []string{long, "B=2"}},
		"a line without =":              {"[Service]\nEnvironment=A=1\nnonsense\nEnvironment=B=2\n", []string{"A=1", "B=2"}},
		"a comment in a continued line": {"[Service]\nEnvironment=A=1 \\\n# comment\n  B=2\n", []string{"A=1", "B=2"}},
		"lines with CR and LF":          {"[Service]\r\nEnvironment=A=1 \\\r\n  B=2\r\n", []string{"A=1", "B=2"}},
		"an unfinished last line":       {"[Service]\nEnvironment=A=1 \\", []string{"A=1"}},
	} {
		root := host(t, map[string]string{"etc/systemd/system/kubelet.service": test.text})
		if _, variables, _, err := systemd.ReadEnvironment(root, "kubelet.service"); err != nil || !slices.Equal(variables, test.want) {
			t.Errorf("%s: it reads %.100q, %v, want %.100q", name, variables, err, test.want)
		}
	}
}
