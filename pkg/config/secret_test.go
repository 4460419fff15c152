package config_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/config"
)

// withoutSecrets is what of the settings can be printed.
func withoutSecrets(cfg config.Config) config.Config {
	cfg.Webhook.URL, cfg.Webhook.Headers, cfg.Webhook.Proxy = "", nil, ""
	return cfg
}

const secrets = `[webhook]
url = "https://hooks.example/hunter2"
headers = { Authorization = "Bearer hunter2", X-Key = "hunter2" }
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

func TestSecretsAreReadAndNeverPrinted(t *testing.T) {
	cfg := secretive(t, secrets)
	if w := cfg.Webhook; w.URL != "https://hooks.example/hunter2" || w.Headers["Authorization"] != "Bearer hunter2" ||
		w.Headers["X-Key"] != "hunter2" || w.Proxy != "tcp://me:hunter2@proxy.example:3128" {
		t.Errorf("read as %+v", w)
	}
	var printed bytes.Buffer
	if err := config.Encode(&printed, cfg); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"hunter2", "hooks.example", "proxy.example"} {
		if strings.Contains(printed.String(), word) {
			t.Errorf("%q is printed:\n%s", word, &printed)
		}
	}
	for _, want := range []string{"# url is set, and not shown.", "# headers is set, and not shown.", "# proxy is set, and not shown."} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &printed)
		}
	}
	if again := reload(t, cfg); !same(again, withoutSecrets(cfg)) {
		t.Errorf("printed and read again as %+v", again)
	}
}

func TestASecretThatChangesIsADifference(t *testing.T) {
	before := secretive(t, secrets)
	after := secretive(t, strings.ReplaceAll(secrets, "hunter2", "hunter3"))
	if got, want := config.Diff(before, after), []string{"webhook.url", "webhook.headers", "webhook.proxy"}; !slices.Equal(got, want) {
		t.Errorf("the differences are %q, want %q", got, want)
	}
}

func TestADropInTakesOneHeaderAway(t *testing.T) {
	cfg := secretive(t, secrets)
	if err := config.Decode("drop-in", []byte("[webhook.headers]\nX-Key = \"\"\nX-New = \"1\""), &cfg); err != nil {
		t.Fatal(err)
	}
	if h := cfg.Webhook.Headers; len(h) != 2 || h["X-New"] != "1" || h["Authorization"] == "" {
		t.Errorf("the headers are %v", h)
	}
}
