package settings_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// pipe is a named pipe that nobody writes to.
func pipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
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

// Whatever is wrong, a notice can be posted, by nth's own template if it is that.
func TestWebhook_FaultsLeaveItWorking(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*config.Webhook)
		want   string
		own    bool // nth's own template takes the place of the one that is set
	}{
		"nothing":                    {func(*config.Webhook) {}, "", false},
		"that does not compile":      {func(c *config.Webhook) { c.Template = "{{ nope }}" }, "webhook.template:1: function \"nope\" not defined", true},
		"a template":                 {func(c *config.Webhook) { c.Template = "{{ .Nope }}" }, "webhook.template:1:3: ", true},
		"a template's file":          {func(c *config.Webhook) { c.Template = write(t, "{{ .Nope }}") }, "/file:1:3: ", true},
		"that is not there":          {func(c *config.Webhook) { c.Template = "/nowhere/file" }, "webhook.template: stat /nowhere/file", true},
		"that is a pipe":             {func(c *config.Webhook) { c.Template = pipe(t) }, "/pipe is not a file", true},
		"a template that is no JSON": {func(c *config.Webhook) { c.Template = "hello" }, "it gives no JSON", true},
		"headers":                    {func(c *config.Webhook) { c.HeadersFile = write(t, "hello") }, `line 1 is not "Name: value"`, false},
		"headers in a pipe":          {func(c *config.Webhook) { c.HeadersFile = pipe(t) }, "/pipe is not a file", false},
		"certificates":               {func(c *config.Webhook) { c.CAFile = write(t, "hello") }, "there is none in ", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, url := range []string{"", "http://127.0.0.1:1"} {
				c := config.Webhook{URL: url, Template: sound}
				row.change(&c)
				to, faults := settings.Webhook(c, "nth")
				if row.want == "" && len(faults) > 0 || row.want != "" && (len(faults) != 1 || !strings.HasPrefix(faults[0], "webhook: ") || !strings.Contains(faults[0], row.want)) {
					t.Errorf("with the URL %q the faults are %q, want %q", url, faults, row.want)
				}
				if (to == nil) != (url == "") {
					t.Fatalf("with the URL %q there are settings %v", url, to)
				}
				if to == nil {
					continue
				}
				want := fmt.Sprintf(`{"text": %q}`, notify.Samples()[0].Outcome)
				if got := message(t, to); (got == want) == row.own {
					t.Errorf("posted is %s", got)
				}
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
	for name, text := range map[string]string{"webhook-url": server.URL + "/hunter2", "webhook-headers": "X-Key: hunter2"} {
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
	both := config.Webhook{URL: "https://hooks.test/hunter2", URLFile: filepath.Join(dir, "webhook-url")}
	if to, faults := settings.Webhook(both, "nth"); to != nil || len(faults) != 1 || strings.Contains(faults[0], "hunter2") {
		t.Errorf("with two addresses, the settings are %v, the faults %q", to, faults)
	}
}
