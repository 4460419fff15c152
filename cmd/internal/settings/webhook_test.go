package settings_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

const sound = `{"text": {{ toJson .Outcome }}}`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// message is what the webhook would post.
func message(t *testing.T, webhook *notify.WebhookOptions) string {
	t.Helper()
	text, err := webhook.Template.Render(notify.Samples()[0])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// nth's own template takes the place of a faulty one. Another fault turns the webhook off.
func TestWebhook_FaultsAreReportedInOneLine(t *testing.T) {
	for name, row := range map[string]struct {
		change    func(*config.Webhook)
		want      string
		off, with bool // the webhook is off; the template of the settings is used
	}{
		"nothing":                    {func(*config.Webhook) {}, "", false, true},
		"no address":                 {func(c *config.Webhook) { c.URLFile = "" }, "", true, false},
		"no address, and a template": {func(c *config.Webhook) { c.URLFile, c.Template = "", "{{ nope }}" }, "webhook.template:1: function \"nope\" not defined", true, false},
		"a template":                 {func(c *config.Webhook) { c.Template = "{{ .Nope }}" }, "webhook.template:1:3: ", false, false},
		"a template's file":          {func(c *config.Webhook) { c.Template = write(t, "{{ .Nope }}") }, "/file:1:3: ", false, false},
		"a file that is not there":   {func(c *config.Webhook) { c.Template = "/nowhere/file" }, "webhook.template: stat /nowhere/file", false, false},
		"a template that is no JSON": {func(c *config.Webhook) { c.Template = "hello" }, "the webhook's template does not render valid JSON", false, false},
		"headers":                    {func(c *config.Webhook) { c.HeadersFile = write(t, "hello") }, "must contain one JSON object", true, false},
		"a secret for an address":    {func(c *config.Webhook) { c.URLFile = write(t, "hunter2") }, "does not begin with http", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Webhook{URLFile: write(t, "http://127.0.0.1:1"), Template: sound}
			row.change(&c)
			to, faults := settings.Webhook(c, "nth")
			text := strings.Join(faults, "\n")
			if len(faults) > 1 || (text == "") != (row.want == "") || !strings.Contains(text, row.want) || strings.Contains(text, "hunter2") {
				t.Errorf("the faults are %q, want %q", faults, row.want)
			}
			if (to == nil) != row.off {
				t.Fatalf("the options are %v", to)
			}
			if to != nil && (message(t, to) == fmt.Sprintf(`{"text": %q}`, notify.Samples()[0].Outcome)) != row.with {
				t.Errorf("posted is %s", message(t, to))
			}
		})
	}
}

func TestWebhook_TheAddressIsTheCredentialUnlessOneIsSet(t *testing.T) {
	posts := 0
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") == "hunter2" && r.URL.Path == "/hunter2" {
			posts++
		}
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	for name, text := range map[string]string{"webhook-url": server.URL + "/hunter2", "webhook-headers": `{"X-Key": "hunter2"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to, faults := settings.Webhook(config.Webhook{}, "nth")
	if to == nil || len(faults) > 0 {
		t.Fatalf("the settings are %v, the faults %q", to, faults)
	}
	if err := to.Post(t.Context(), "1", "{}"); err != nil || posts != 1 {
		t.Errorf("posted %d times: %v", posts, err)
	}
}
