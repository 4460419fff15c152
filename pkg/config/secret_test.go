package config_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
)

// withoutSecrets is what of the settings can be printed.
func withoutSecrets(cfg config.Config) config.Config {
	cfg.Webhook.Proxy = ""
	return cfg
}

const secrets = `[webhook]
proxy = "tcp://me:hunter2@proxy.example:3128"
`

func secretive(t *testing.T, text string) config.Config {
	t.Helper()
	cfg := config.Default()
	if err := config.Decode("nth.toml", []byte(text), &cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestSecrets_AreReadAndNeverPrinted(t *testing.T) {
	cfg := secretive(t, secrets)
	if w := cfg.Webhook; w.Proxy != "tcp://me:hunter2@proxy.example:3128" {
		t.Errorf("read as %+v", w)
	}
	var printed bytes.Buffer
	if err := config.Encode(&printed, cfg); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"hunter2", "proxy.example"} {
		if strings.Contains(printed.String(), word) {
			t.Errorf("%q is printed:\n%s", word, &printed)
		}
	}
	for _, want := range []string{"# proxy is set, and not shown."} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &printed)
		}
	}
	if again := reload(t, cfg); !same(again, withoutSecrets(cfg)) {
		t.Errorf("printed and read again as %+v", again)
	}
}

func TestSecrets_InTheWrongPlaceAreInNoError(t *testing.T) {
	texts := []string{
		"webhook = 'hunter'", "webhook = ['hunter']", "[[webhook]]\nurl = 'hunter'", "webhook = { url = hunter }", "webhook.url = hunter",
		"\"webhook\" = { url = hunter }", "webhook.'https://hooks.test/hunter' = 1",
		"[imds]\nendpoint = hunter", "hunter = hunter", "[log]\nlevel = 'hunter\n", "token: hunter", // a secret in the wrong place
		"[imds]\nendpoint = 'http://me:hunter@a:b'", "[imds]\nendpoint = 'http://me:hunter@a'", "[imds]\nendpoint = 'http://me:hun/ter/hunter@a'", "[kubernetes]\nkubeconfig = 'https://me:hunter@a'",
		"[webhook.'https://hooks.test/hunter']\n[webhook.'https://hooks.test/hunter']",
		"[webhook]\nurl = 'https://hooks.test'\n[headers]\nAuthorization = hunter", "[webhook.'https://hooks.test/hunter']\na = true",
	}
	for _, line := range []string{
		"url = hunter", "url = https://hooks.test/hunter", "url = 'https://hooks.test/hunter", "url = 'a' hunter", "url 'hunter'", "url: hunter",
		"url = 'a'\nurl = 'hunter'", "url = 12345hunter", "url = ['hunter']", "url_file = 'https://hooks.test/hunter'", "timeout = 'hunter'",
		"at = 'hunter'", "proxy = 'http://me:hunter@'", "https://hooks.test/hunter", "'https://hooks.test/hunter' = true", "hunter hunter",
		"headers = { Authorization = Bearer hunter }", "headers = { Authorization = hunter }", "headers = { 'Bearer hunter' = 1 }",
		"headers = { 'Authorization: Bearer hunter' = '' }", "headers = ['hunter']", "headers = 'hunter'", "headers.Authorization = ['hunter']",
		"headers = { 'a.hunter' = 'b', 'a.hunter' = 'c' }", "headers = { X = \"hunter\\n\" }",
		"template = \"\"\"\n[imds]\n[\"log\"]\n\"\"\"\nurl = hunter",
	} {
		texts = append(texts, "[webhook]\n"+line, "[imds]\n[ webhook ] # ours\n"+line, "[log]\nlevel = 'info'\n\n[\"webhook\"]\n"+line+"\n[metrics]\n")
	}
	for _, text := range texts {
		cfg := config.Default()
		err := config.Decode("nth.toml", []byte(text), &cfg)
		if err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("of\n%s\nit is said: %v", text, err)
		}
	}
}

func TestSecrets_AnUnknownKeyOfTheWebhookIsNotShown(t *testing.T) {
	cfg := config.Default()
	const want = "nth.toml: line 2: webhook.(not shown): unknown key; [webhook] has at, cluster, headers_file, proxy, template, url_file"
	if err := config.Decode("nth.toml", []byte("[webhook]\n'a b' = 'a'"), &cfg); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
