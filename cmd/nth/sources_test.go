package main_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/rehearsal"
)

func TestCheck_SaysWhichFilesWereRead(t *testing.T) {
	b := newBench(t)
	for name, text := range map[string]string{"50-webhook.toml": "[webhook]\nproxy = \"http://me:hunter2@a.test\"\n", "60-old.toml.bak": "no TOML"} {
		if err := os.MkdirAll(b.settings+".d", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.settings+".d", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	said := b.check(t, "--offline")
	mustSay(t, said, `ok    settings    read .*/nth\.toml`, `ok    settings    read .*/nth\.toml\.d/50-webhook\.toml`,
		`warn  settings    ignored .*/60-old\.toml\.bak: its name does not end with \.toml`,
		`ok    webhook     no webhook configured`)
	status, stdout, stderr := call(t, "config --check --config "+b.settings)
	mustSay(t, stdout, `.*/nth\.toml: read`, `.*/50-webhook\.toml: read`, `.*/60-old\.toml\.bak: ignored: its name does not end with \.toml`, `.*/nth\.toml, .*/50-webhook\.toml: ok`)
	if status != 0 || stderr != "" || strings.Contains(said+stdout, "hunter2") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

// In a host container, the kubeconfig is below the host's root.
func TestCheck_TheTestOfTheWebhookNamesTheNode(t *testing.T) {
	b := newBench(t)
	b.join(t)
	posted := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		posted <- string(text)
	}))
	t.Cleanup(server.Close)
	address := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(address, []byte(server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	b.set(t, "[webhook]\nurl_file = \""+address+"\"")
	mustSay(t, b.check(t, "--webhook"), `ok    webhook     test message delivered`)
	if text := <-posted; !strings.Contains(text, rehearsal.Node) {
		t.Errorf("what is posted does not name the node: %s", text)
	}
}
