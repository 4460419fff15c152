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

func TestReadCredentials_AppliesDropIns(t *testing.T) {
	root := host(t, map[string]string{
		"usr/lib/systemd/system/nth-queue.service":           "[Unit]\nLoadCredential=no:/no\n[Service]\nLoadCredential=kubeconfig:/etc/nth/kubeconfig\nSetCredential=a:x:y 100%%\n",
		"etc/systemd/system/service.d/10.conf":               "[Service]\nImportCredential=all\nLoadCredential=all:/all\n",
		"etc/systemd/system/nth-.service.d/20.conf":          "[Service]\nLoadCredential=some:/some\n",
		"usr/lib/systemd/system/nth-queue.service.d/20.conf": "[Service]\nLoadCredential=\nLoadCredentialEncrypted=kubeconfig:/etc/nth/kubeconfig.cred\n",
		"etc/systemd/system/nth-queue.service.d/30.conf":     "[Service]\nSetCredential=\nSetCredentialEncrypted=a: \\\n  AAAA\n",
		"etc/systemd/system/nth-queue.service.d/40.config":   "[Service]\nLoadCredential=no:/no\n",
	})
	lines, err := systemd.ReadCredentials(root, "nth-queue.service")
	want := []string{"ImportCredential=all", "LoadCredentialEncrypted=kubeconfig:/etc/nth/kubeconfig.cred"}
	if err != nil || len(lines) != 3 || !slices.Equal(lines[:2], want) || lines[2][:len("SetCredentialEncrypted=a:")] != "SetCredentialEncrypted=a:" {
		t.Errorf("it reads %q, %v; want %q and what is set", lines, err, want)
	}
	if lines, err := systemd.ReadCredentials(root, "nth.service"); len(lines) > 0 || err != nil {
		t.Errorf("of a service that does not exist it reads %q, %v", lines, err)
	}
}

// Who opens a pipe waits for a writer. /dev/null is how a drop-in is masked.
func TestReadCredentials_APipeIsNoUnit(t *testing.T) {
	root := host(t, map[string]string{"etc/systemd/system/nth-queue.service": "[Service]\nLoadCredential=a:/a\n"})
	dropIns := filepath.Join(root, "etc/systemd/system/nth-queue.service.d")
	if err := os.Mkdir(dropIns, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", filepath.Join(dropIns, "10.conf")); err != nil {
		t.Fatal(err)
	}
	if lines, err := systemd.ReadCredentials(root, "nth-queue.service"); err != nil || len(lines) != 1 {
		t.Errorf("it reads %q, %v", lines, err)
	}
	if err := syscall.Mkfifo(filepath.Join(dropIns, "20.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	if lines, err := systemd.ReadCredentials(root, "nth-queue.service"); err == nil || !strings.Contains(err.Error(), "20.conf: it is not a file") {
		t.Errorf("it reads %q, %v", lines, err)
	}
}

func TestReadCredentials_TheNearerOfTwoDropInsCounts(t *testing.T) {
	root := host(t, map[string]string{
		"etc/systemd/system/nth-queue.service":               "[Service]\n",
		"etc/systemd/system/nth-.service.d/20.conf":          "[Service]\nLoadCredential=far:/far\n",
		"usr/lib/systemd/system/nth-queue.service.d/20.conf": "[Service]\nLoadCredential=near:/near\n",
	})
	if lines, err := systemd.ReadCredentials(root, "nth-queue.service"); err != nil || !slices.Equal(lines, []string{"LoadCredential=near:/near"}) {
		t.Errorf("it reads %q, %v", lines, err)
	}
}
