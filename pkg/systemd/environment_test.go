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

func TestReadEnvironment_AppliesDropInsAndFiles(t *testing.T) {
	root := host(t, map[string]string{
		"usr/lib/systemd/system/kubelet.service":                      "[Unit]\nEnvironment=NO=1\n[Service]\nEnvironment=A=unit B=unit\nEnvironmentFile=-/etc/none\nEnvironmentFile=/etc/*.env\n",
		"usr/lib/systemd/system/kubelet.service.d/10-a.conf":          "[Service]\nEnvironment=A=overridden\n",
		"etc/systemd/system/kubelet.service.d/10-a.conf":              "[Service]\nEnvironment=A=10\n",
		"etc/systemd/system/kubelet.service.d/environment.conf":       "[Service]\nEnvironment=\"HTTPS_PROXY=http://proxy.test:3128\" 'NO_PROXY=a, b'\\\n  C=\"\" D=100%%\n",
		"etc/systemd/system/kubelet.service.d/not-one.txt":            "[Service]\nEnvironment=A=not-one\n",
		"etc/systemd/system/snap.kubelet-eks.daemon.service.d/a.conf": "[Service]\nEnvironment=A=drop-in-of-nothing\n",
		"etc/systemd/system/reset.service":                            "[Service]\nEnvironment=A=1\nEnvironmentFile=/etc/a.env\nEnvironment=\nEnvironmentFile=\n Environment = B=2\t\n# Environment=C=3\n",
		"etc/systemd/system/directory.service":                        "[Service]\nEnvironmentFile=/etc\n",
		"etc/systemd/system/pipe.service":                             "[Service]\nEnvironmentFile=/etc/pipe\n",

		"etc/a.env": "# a comment\n ; another\n\nA=1 # no comment\r\n B = two words \nC=\"in quotes\"\nD='in \"others\"'\nnothing\nE=on \\\n two lines\nF=\nG=it's\nH=\"",
		"etc/b.env": "A=2\n",
	})
	if err := syscall.Mkfifo(filepath.Join(root, "etc/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		services  []string
		service   string
		variables []string
		fault     string
	}{
		{[]string{"snap.kubelet-eks.daemon.service", "kubelet.service"}, "kubelet.service", []string{
			"A=unit", "B=unit", "A=10", "HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=a, b", "C=", "D=100%",
			"A=1 # no comment", "B=two words", "C=in quotes", `D=in "others"`, "E=on two lines", "F=", "G=it's", `H="`, "A=2",
		}, ""},
		{[]string{"reset.service"}, "reset.service", []string{"B=2"}, ""},
		{[]string{"none.service"}, "", nil, ""},
		{[]string{"directory.service"}, "directory.service", nil, "is a directory"},
		{[]string{"pipe.service"}, "pipe.service", nil, "/etc/pipe: it is not a file, but a pipe or a socket"}, // Who opens a pipe waits for a writer.
	} {
		service, variables, err := systemd.ReadEnvironment(root, test.services...)
		if service != test.service || !slices.Equal(variables, test.variables) || (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("of %q it reads %q: %q, %v", test.services, service, variables, err)
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
		if _, variables, err := systemd.ReadEnvironment(root, "kubelet.service"); err != nil || !slices.Equal(variables, test.want) {
			t.Errorf("%s: it reads %.100q, %v, want %.100q", name, variables, err, test.want)
		}
	}
}
