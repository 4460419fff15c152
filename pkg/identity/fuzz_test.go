package identity_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/identity"
)

// mustBeShort fails the test unless an error is one line of bounded length without the canary.
func mustBeShort(t *testing.T, err error) {
	t.Helper()
	if line := err.Error(); len(line) > 1500 || strings.ContainsAny(line, "\n\r") || strings.Contains(line, canary) {
		t.Fatalf("the error has %d bytes: %q", len(line), line)
	}
}

// FuzzKubeletConfiguration holds for any configuration and drop-in of a kubelet: they are read as spans that make sense, or the file is named.
func FuzzKubeletConfiguration(f *testing.F) {
	f.Add([]byte("shutdownGracePeriod: 45s\nshutdownGracePeriodCriticalPods: 10s\n"), []byte(`{"shutdownGracePeriod": "9s"}`))
	f.Add([]byte(`{"shutdownGracePeriodByPodPriority": [{"shutdownGracePeriodSeconds": 9223372036}, {"shutdownGracePeriodSeconds": 9223372036}]}`), []byte("{}"))
	f.Add([]byte("shutdownGracePeriod: -5s\n"), []byte("shutdownGracePeriodCriticalPods: 2562047h\n"))
	f.Add([]byte("&a [*a, *a]\n"), []byte("shutdownGracePeriod: {"+canary+": \"\n"))
	root := f.TempDir()
	path := filepath.Join(root, "var/lib/kubelet/config.yaml")
	dropin := path + ".d/10.conf"
	if err := os.MkdirAll(filepath.Dir(dropin), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, document, added []byte) {
		for path, content := range map[string][]byte{path: document, dropin: added} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		found, err := identity.ReadGracefulShutdown(root)
		if err != nil {
			if mustBeShort(t, err); !strings.Contains(err.Error(), path) {
				t.Fatalf("%v does not name the file", err)
			}
			return
		}
		if found.Source != path || found.Critical < 0 || found.Period < 0 || found.Critical > found.Period {
			t.Fatalf("read as %+v", found)
		}
	})
}

// FuzzExecCredential holds for whatever an exec plugin prints: it is a credential, or an error that shows nothing of the output and
// nothing secret of the complaint.
func FuzzExecCredential(f *testing.F) {
	for _, status := range []string{
		`{"token": "a", "expirationTimestamp": "2026-01-01T00:00:00Z"}`, `{"token": 12345678901234567}`, `null`, `{}`,
		`{"clientKeyData": "` + canary + `", "clientCertificateData": "` + canary + `"}`,
	} {
		f.Add([]byte(fmt.Sprintf(`{"kind": "ExecCredential", "apiVersion": %q, "status": %s}`, v1, status)), []byte("password: "+canary))
	}
	f.Add([]byte("kind: Secret\napiVersion: v1\n"), []byte(`{"token": "`+canary+`", "\u001b[2J`))
	f.Add([]byte("usage: "+canary), []byte(strings.Repeat(canary+" ", 500)))
	config := &rest.Config{Host: "https://apiserver.test", ExecProvider: &api.ExecConfig{
		APIVersion: v1, Command: "aws", InteractiveMode: api.NeverExecInteractiveMode,
	}}
	f.Fuzz(func(t *testing.T, stdout, stderr []byte) {
		token, expires, err := identity.ReadPlugin(config, stdout, stderr)
		if err != nil {
			if mustBeShort(t, err); token != "" || !expires.IsZero() {
				t.Fatalf("%v, and %q until %s", err, token, expires)
			}
			return
		}
		if token == "" {
			t.Fatalf("%q is no credential", stdout)
		}
		if again, until, err := identity.ReadPlugin(config, stdout, nil); err != nil || again != token || !until.Equal(expires) {
			t.Fatalf("%q is read as %q, and then as %q (%v)", stdout, token, again, err)
		}
	})
}
