package systemd_test

import (
	"slices"
	"testing"

	"github.com/nth-project/nth/pkg/systemd"
)

func TestReadCredentials_AppliesDropIns(t *testing.T) {
	root := host(t, map[string]string{
		"usr/lib/systemd/system/nth-queue.service":           "[Unit]\nLoadCredential=no:/no\n[Service]\nLoadCredential=kubeconfig:/etc/nth/kubeconfig\nSetCredential=a:x:y 100%%\n",
		"etc/systemd/system/nth-queue.service.d/10.conf":     "[Service]\nImportCredential=all\nLoadCredential=all:/all\n",
		"etc/systemd/system/nth-queue.service.d/20.conf":     "[Service]\nLoadCredential=\nLoadCredentialEncrypted=kubeconfig:/etc/nth/kubeconfig.cred\n",
		"usr/lib/systemd/system/nth-queue.service.d/20.conf": "[Service]\nLoadCredential=far:/far\n",
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
