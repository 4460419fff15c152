package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// importing runs "nth config import" on settings of the container-based handler, with flags before the file.
func importing(t *testing.T, settings string, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "old")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return call(t, strings.Join(append(append([]string{"config", "import"}, flags...), file), " "))
}

func TestImport_SecretsGoIntoPrivateFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secret")
	const settings = "WEBHOOK_URL=https://hooks.example.com/hunter2\nWEBHOOK_HEADERS={\"X-Token\":\"hunter2\"}\n"
	for range 2 { // A second time, the files have the right content.
		status, stdout, stderr := importing(t, settings, "--secrets", dir)
		if status != 0 || stderr != "" || strings.Contains(stdout, "hunter2") || !strings.Contains(stdout, `url_file = "`+dir+`/webhook-url"`) {
			t.Fatalf("status %d: %s%s", status, stdout, stderr)
		}
	}
	for name, want := range map[string]string{"webhook-url": "https://hooks.example.com/hunter2\n", "webhook-headers": "{\"X-Token\":\"hunter2\"}\n"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(content) != want {
			t.Errorf("%s holds %q (%v), want %q", name, content, err, want)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v (%v), want a mode of 0600", name, info.Mode(), err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "webhook-headers")); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := importing(t, "WEBHOOK_URL=https://hooks.example.com/other\nWEBHOOK_HEADERS={\"X-Token\":\"hunter3\"}\n", "--secrets", dir)
	if !strings.Contains(stderr, dir+"/webhook-url already exists with other content") {
		t.Errorf("a file that is there: %s", stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "webhook-headers")); !os.IsNotExist(err) {
		t.Errorf("of two secrets, of which one could not be kept, the other was (%v)", err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "webhook-url")); status != 1 || stdout != "" || err != nil || !strings.Contains(string(content), "hunter2") {
		t.Errorf("status %d: %s%s; the file of another address is %q (%v)", status, stdout, stderr, content, err)
	}
}

func TestImport_ValidatesBeforeItPrints(t *testing.T) {
	for settings, want := range map[string]string{
		"INSTANCE_METADATA_URL=elsewhere":       "nth.toml: imds.endpoint",
		"DRY_RUN=perhaps":                       `DRY_RUN = "perhaps": must be true or false`,
		"ENABLE_SQS_TERMINATION_DRAINING=true":  `"nth-queue config import"`,
		"WEBHOOK_HEADERS={\"a b\":\"hunter2\"}": "valid header names",
	} {
		dir := filepath.Join(t.TempDir(), "secret")
		status, stdout, stderr := importing(t, "WEBHOOK_URL=https://a.example.com\n"+settings, "--secrets", dir)
		if status != 78 || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "hunter2") {
			t.Errorf("%s: status %d, on standard error %q, want 78 and %q:\n%s", settings, status, stderr, want, stdout)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: was refused, and has left secrets (%v)", settings, err)
		}
	}
}

// https://github.com/aws/aws-node-termination-handler/issues/521 has a template with a line break inside its JSON string.
func TestImport_GoesOnWithoutAWrongTemplate(t *testing.T) {
	for settings, want := range map[string]string{
		"WEBHOOK_TEMPLATE={{ .Nope }}":                                   "the template:1:3: ",
		"WEBHOOK_TEMPLATE={{ .StartTime.Nope }}":                         "the template:1:13: ",
		"webhookTemplate: |-\n  {\"text\": \"on\n  {{ .NodeName }}\"}\n": "it gives no JSON",
	} {
		status, stdout, stderr := importing(t, settings)
		if status != 0 || !strings.Contains(stdout, "WEBHOOK_TEMPLATE: left out") || !strings.Contains(stdout, want) || strings.Contains(stdout, "template = ") {
			t.Errorf("%s: status %d, want %q:\n%s%s", settings, status, want, stdout, stderr)
		}
	}
	for _, fine := range []string{
		`WEBHOOK_TEMPLATE={"text":"{{ .NodeLabels.Local }} {{ (.StartTime.Round 60000000000).Before .EndTime }}"}`,
		"WEBHOOK_TEMPLATE=hello {{ .Kind }}\nWEBHOOK_HEADERS={\"Content-Type\":\"text/plain\"}",
	} {
		if status, stdout, stderr := importing(t, fine); status != 0 || !strings.Contains(stdout, "template = ") {
			t.Errorf("%s: status %d: %s%s", fine, status, stdout, stderr)
		}
	}
}
