package identity_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
