package settings_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
func message(t *testing.T, webhook *notify.WebhookSettings) string {
	t.Helper()
	text, err := webhook.Template.Render(notify.Samples()[0])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Whatever is wrong, there is something to go on with, also where only the service knows the address.
func TestWebhook_FindingsDoNotNeedTheAddress(t *testing.T) {
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
		"that is a directory":        {func(c *config.Webhook) { c.Template = t.TempDir() }, " is not a file", true},
		"that is empty":              {func(c *config.Webhook) { c.Template = write(t, "") }, "/file is empty", true},
		"a template that is no JSON": {func(c *config.Webhook) { c.Template = "hello" }, "it gives no JSON", true},
		"headers":                    {func(c *config.Webhook) { c.HeadersFile = write(t, "hello") }, `line 1 is not "Name: value"`, false},
		"headers in a pipe":          {func(c *config.Webhook) { c.HeadersFile = pipe(t) }, "/pipe is not a file", false},
		"certificates":               {func(c *config.Webhook) { c.CAFile = write(t, "hello") }, "there is none in ", false},
		"certificates in a pipe":     {func(c *config.Webhook) { c.CAFile = pipe(t) }, "/pipe is not a file", false},
		"a proxy":                    {func(c *config.Webhook) { c.Proxy = "ftp://a" }, "none of http, https, socks5 and tcp", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, url := range []string{"", "http://127.0.0.1:1"} {
				c := config.Webhook{URL: url, Template: sound}
				row.change(&c)
				var faults []string
				err := settings.Add(nil, settings.Look(&c, "nth", settings.Own))
				if degraded, fatal := settings.Degraded(err); fatal != nil {
					t.Errorf("that is fatal: %v", fatal)
				} else {
					faults = degraded
				}
				if row.want == "" && len(faults) > 0 || row.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], row.want)) {
					t.Errorf("with the URL %q the faults are %q, want %q", url, faults, row.want)
				}
				webhook, err := settings.Webhook(c, "nth", settings.Own)
				if err != nil || (webhook == nil) != (url == "") {
					t.Fatalf("with the URL %q there are settings %v, %v", url, webhook, err)
				}
				if webhook == nil {
					continue
				}
				want := fmt.Sprintf(`{"text": %q}`, notify.Samples()[0].Outcome)
				if got := message(t, webhook); (got == want) == row.own {
					t.Errorf("posted is %s", got)
				}
			}
		})
	}
}

func TestSeveralFaultsAreOneLineEachBesideThoseOfReading(t *testing.T) {
	c := config.Webhook{URLFile: "/nowhere/url", HeadersFile: "/nowhere/headers", CAFile: "/nowhere/ca", Template: "/nowhere/template"}
	faults, fatal := settings.Degraded(settings.Add(config.Degraded{Faults: []error{errors.New("metrics.listen is none")}}, settings.Look(&c, "nth", settings.Own)))
	if fatal != nil || len(faults) != 5 || faults[0] != "metrics.listen is none" {
		t.Errorf("%v, %q", fatal, faults)
	}
	for _, fault := range faults[1:] {
		if !strings.HasPrefix(fault, "webhook: ") {
			t.Errorf("%q does not say what it is about", fault)
		}
	}
	wrong := errors.New("drain.margin is none")
	if err := settings.Add(wrong, settings.Look(&c, "nth", settings.Own)); !errors.Is(err, wrong) {
		t.Errorf("what is fatal is told as %v", err)
	}
}

// A file may change between two looks at it: what was judged is what is used.
func TestATemplatesFileIsReadOnce(t *testing.T) {
	c := config.Webhook{URL: "http://127.0.0.1:1", Template: write(t, sound)}
	if err := settings.Add(nil, settings.Look(&c, "nth", settings.Own)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Template, []byte("{{ .Nope }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	webhook, err := settings.Webhook(c, "nth", settings.Own)
	if err != nil {
		t.Fatal(err)
	}
	if got := message(t, webhook); !strings.Contains(got, notify.Samples()[0].Outcome) {
		t.Errorf("posted is %s", got)
	}
}

func TestAReloadNamesWhatHasChangedOfTheTemplate(t *testing.T) {
	path := write(t, sound)
	judged := func(c config.Webhook) config.Config {
		cfg := config.Default()
		cfg.Webhook = c
		if err := settings.Add(nil, settings.Look(&cfg.Webhook, "nth", settings.Own)); err != nil {
			t.Error(err)
		}
		return cfg
	}
	file, text := config.Webhook{Template: path}, config.Webhook{Template: sound}
	before := judged(file)
	if got := config.Diff(before, judged(file)); len(got) > 0 {
		t.Errorf("of what is as it was %q differ", got)
	}
	if got, want := config.Diff(before, judged(text)), []string{"webhook.template"}; !slices.Equal(got, want) {
		t.Errorf("in another place %q differ, want %q", got, want)
	}
	if err := os.WriteFile(path, []byte(sound+" "), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := config.Diff(before, judged(file)), []string{"webhook.template"}; !slices.Equal(got, want) {
		t.Errorf("with another text %q differ, want %q", got, want)
	}
	longer := config.Webhook{Template: sound + " "}
	if got, want := config.Diff(judged(text), judged(longer)), []string{"webhook.template"}; !slices.Equal(got, want) {
		t.Errorf("of one in the settings %q differ, want %q", got, want)
	}
}

// given are credentials as they would be found.
func given(all ...settings.Credential) settings.Given {
	return func(name string) settings.Credential {
		for _, c := range all {
			if c.Name == name {
				return c
			}
		}
		return settings.Credential{}
	}
}

func TestCredentialsAreJudgedLikeFilesOfTheSettings(t *testing.T) {
	url := settings.Credential{Name: "webhook-url", Source: "LoadCredential=", File: write(t, "https://hooks.test/hunter2")}
	sealed := settings.Credential{Name: "webhook-url", Source: "LoadCredentialEncrypted=", Sealed: "it is encrypted"}
	missing := settings.Credential{Name: "webhook-headers", Source: "LoadCredential=", Fault: errors.New("it is not there")}
	const ofURL, ofHeaders = "the credential webhook-url (LoadCredential=)", "the credential webhook-headers (LoadCredential=)"
	for name, row := range map[string]struct {
		webhook config.Webhook
		given   settings.Given
		want    []settings.Finding // of a fault, that there is one
		posts   bool
	}{
		"none":         {config.Webhook{}, given(), nil, false},
		"an address":   {config.Webhook{}, given(url), []settings.Finding{{Source: ofURL}}, true},
		"an encrypted": {config.Webhook{}, given(sealed), []settings.Finding{{Source: sealed.String(), Passed: "it is encrypted"}}, false},
		"one that is passed over for a file": {
			config.Webhook{URLFile: url.File}, given(sealed), []settings.Finding{{Source: sealed.String(), Passed: "webhook.url_file goes before it"}, {Source: url.File}}, true,
		},
		"one that is passed over for the settings": {
			config.Webhook{URL: "https://a.test"}, given(url), []settings.Finding{{Source: ofURL, Passed: "webhook.url goes before it"}}, true,
		},
		"one that keeps the service from starting": {
			config.Webhook{}, given(url, missing), []settings.Finding{{Source: ofHeaders, Fault: missing.Fault}, {Source: ofURL}}, true,
		},
		"so, also where a file goes before it": {
			config.Webhook{HeadersFile: write(t, "A: b")}, given(missing), []settings.Finding{
				{Source: ofHeaders, Fault: missing.Fault, Passed: "webhook.headers_file goes before it"}, {},
			}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := row.webhook
			found := settings.Look(&c, "nth", row.given)
			same := slices.EqualFunc(found, row.want, func(got, want settings.Finding) bool {
				return (got.Source == want.Source || want == settings.Finding{}) && got.Passed == want.Passed && (got.Fault == nil) == (want.Fault == nil)
			})
			if !same {
				t.Errorf("found is %+v, want %+v", found, row.want)
			}
			if strings.Contains(fmt.Sprint(found), "hunter2") {
				t.Errorf("a secret is told: %v", found)
			}
			if webhook, err := settings.Webhook(c, "nth", row.given); err != nil || (webhook != nil) != row.posts {
				t.Errorf("it posts by %+v, %v", webhook, err)
			}
		})
	}
}
