package main_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/rehearsal"
)

// serve puts a unit for nth into the bench, with more lines in a drop-in of it.
func (b *bench) serve(t *testing.T, lines ...string) {
	t.Helper()
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	b.put(t, "usr/lib/systemd/system/nth.service", "[Service]\nExecStart=/usr/bin/nth run\n")
	b.put(t, "etc/systemd/system/nth.service.d/50-webhook.conf", "[Service]\n"+strings.Join(lines, "\n")+"\n")
}

// judge runs "nth config --check" on the bench's settings.
func (b *bench) judge(t *testing.T) (status int, stdout, stderr string) {
	t.Helper()
	return call(t, "config --check --config "+b.settings)
}

// What is missing on the node is found where the image is made, or by whoever is at the node, and not by the first notice.
func TestTheCredentialsOfTheServiceAreJudgedBesideIt(t *testing.T) {
	const url = "the credential webhook-url (LoadCredential= of nth.service, /etc/nth/url)"
	const headers = "the credential webhook-headers (LoadCredentialEncrypted= of nth.service, /etc/nth/headers)"
	b := newBench(t)
	b.put(t, "etc/nth/url", "https://hooks.test/hunter2\n")
	b.put(t, "etc/nth/headers", "sealed")
	b.serve(t, "LoadCredential=webhook-url:/etc/nth/url", "LoadCredentialEncrypted=webhook-headers:/etc/nth/headers")
	said := b.check(t, "--offline")
	mustSay(t, said, `ok    webhook     read `+regexp.QuoteMeta(url),
		`warn  webhook     ignored `+regexp.QuoteMeta(headers)+`: only the service gets it`,
		`ok    webhook     the template renders every kind of notice; "nth check --webhook" posts a test`)
	status, stdout, stderr := b.judge(t)
	mustSay(t, stdout, regexp.QuoteMeta(b.settings)+": read", regexp.QuoteMeta(url)+": read", regexp.QuoteMeta(headers)+": ignored: only the service gets it", regexp.QuoteMeta(b.settings)+": ok")
	if status != 0 || stderr != "" || strings.Contains(said+stdout, "hunter2") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}

	if err := os.Remove(filepath.Join(b.host, "etc/nth/url")); err != nil {
		t.Fatal(err)
	}
	const fault = `webhook: .*/etc/nth/url is not there: systemd does not start nth\.service without it \(status 243\)`
	mustSay(t, b.check(t, "--offline"), `fail  degraded    `+fault)
	status, stdout, stderr = b.judge(t)
	if mustSay(t, stderr, fault); status != 78 || strings.Contains(stdout, ": ok") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

func TestWhatWasReadAndWhatWasPassedOverIsSaid(t *testing.T) {
	b := newBench(t)
	b.serve(t, "SetCredential=webhook-url:https://hooks.test/hunter2")
	for name, text := range map[string]string{
		"50-webhook.toml": "[webhook]\nurl = \"https://a.test/hunter2\"\ntemplate = \"" + b.host + "/page.tmpl\"\n",
		"60-old.toml.bak": "no TOML", ".70.toml": "no TOML",
	} {
		if err := os.MkdirAll(b.settings+".d", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.settings+".d", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.put(t, "page.tmpl", `{"text": {{ toJson .Text }}}`)
	said := b.check(t, "--offline")
	mustSay(t, said, `ok    settings    read .*/nth\.toml`, `ok    settings    read .*/nth\.toml\.d/50-webhook\.toml`,
		`warn  settings    ignored .*/60-old\.toml\.bak: its name does not end with \.toml`, `warn  settings    ignored .*/\.70\.toml: its name begins with a dot`,
		`ok    webhook     read .*/page\.tmpl`, `warn  webhook     ignored the credential webhook-url \(SetCredential= of nth\.service\): webhook\.url goes before it`)
	status, stdout, stderr := b.judge(t)
	mustSay(t, stdout, `.*/nth\.toml: read`, `.*/50-webhook\.toml: read`, `.*/60-old\.toml\.bak: ignored: its name does not end with \.toml`,
		`.*/page\.tmpl: read`, `the credential webhook-url \(SetCredential= of nth\.service\): ignored: webhook\.url goes before it`, `.*/nth\.toml, .*/50-webhook\.toml: ok`)
	if status != 0 || stderr != "" || strings.Contains(said+stdout, "hunter2") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

func TestCheck_warns_of_metrics_that_cannot_be_had(t *testing.T) {
	b := newBench(t)
	metrics := func(text string, flags string) string {
		b.set(t, "[metrics]\n"+text)
		return b.check(t, flags)
	}
	b.put(t, "textfiles/README", "")
	mustSay(t, metrics("textfile = '"+b.host+"/textfiles/nth.prom'\nlisten = '127.0.0.1:1'", "--offline"), `ok    metrics     the directory .*/textfiles exists`)
	mustSay(t, metrics("textfile = '"+b.host+"/none/nth.prom'", "--offline"), `warn  metrics     metrics\.textfile: stat .*/none: no such file or directory; .*`)
	mustSay(t, metrics("textfile = '"+b.host+"/none/nth.prom'", ""), `warn  metrics     metrics\.textfile: stat .*/none: no such file or directory; .*`)
	mustSay(t, metrics("textfile = '"+b.host+"/textfiles/README/nth.prom'", ""), `warn  metrics     metrics\.textfile: stat .*/README: not a directory; .*`)
	mustSay(t, metrics("listen = 'nobody.invalid:9092'", ""), `warn  metrics     metrics\.listen: .*nobody\.invalid.*`)
	for text, want := range map[string]string{
		"nth_build_info 1\n": `ok    metrics     nth serves them at 127\.0\.0\.1:\d+`,
		"other_info 1\n":     `warn  metrics     metrics\.listen: .*address already in use; metrics cannot be scraped`,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		mustSay(t, metrics("listen = '"+server.Listener.Addr().String()+"'", ""), want)
		server.Close()
	}
	free := fmt.Sprintf("127.%d.%d.%d:9092", 1+rand.N(254), rand.N(256), 1+rand.N(254)) // which nobody else has
	mustSay(t, metrics("listen = '"+free+"'", ""), "ok    metrics     can listen on "+regexp.QuoteMeta(free))
}

// In a host container, the kubeconfig is below the host's root.
func TestATestOfTheWebhookNamesTheNodeOfTheHost(t *testing.T) {
	b := newBench(t)
	b.join(t)
	posted := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		posted <- string(text)
	}))
	t.Cleanup(server.Close)
	b.set(t, "[webhook]\nurl = \""+server.URL+"\"")
	mustSay(t, b.check(t, "--webhook"), `ok    webhook     test message delivered`)
	if text := <-posted; !strings.Contains(text, rehearsal.Node) {
		t.Errorf("what is posted does not name the node: %s", text)
	}
}
