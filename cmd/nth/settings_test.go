package main_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
)

func TestDryRunFlagGoesBeforeTheFile(t *testing.T) {
	for _, c := range []struct {
		text string
		args []string
		want bool
	}{
		{"", nil, false},
		{"", []string{"--dry-run"}, true},
		{"dry_run = true", nil, true},
		{"dry_run = true", []string{"--dry-run=false"}, false},
	} {
		cfg, err := nth.RunSettings(append(c.args, "--config", file(t, c.text))...)
		if err != nil || cfg.DryRun != c.want {
			t.Errorf("%q with %q: dry run %v, %v", c.text, c.args, cfg.DryRun, err)
		}
	}
}

func TestSettings_DirectoriesOfSystemd(t *testing.T) {
	for _, c := range []struct{ state, runtime, wantState, wantRuntime string }{
		{"", "", "/var/lib/nth", "/run/nth"},
		{"/var/lib/a", "/run/a", "/var/lib/a", "/run/a"},
		{"/var/lib/a:/var/lib/b", "relative", "/var/lib/a", "/run/nth"},
	} {
		t.Setenv("STATE_DIRECTORY", c.state)
		t.Setenv("RUNTIME_DIRECTORY", c.runtime)
		cfg, err := nth.RunSettings("--config", "/dev/null")
		if err != nil || cfg.StateDirectory != c.wantState || cfg.RuntimeDirectory != c.wantRuntime {
			t.Errorf("%+v: got %q, %q, %v", c, cfg.StateDirectory, cfg.RuntimeDirectory, err)
		}
	}
}

func TestImport_ValidatesBeforeItPrints(t *testing.T) {
	for settings, want := range map[string]string{
		"ENABLE_SPOT_INTERRUPTION_DRAINING=false": "", // is right
		"INSTANCE_METADATA_URL=elsewhere":         ": imds.endpoint",
		"DRY_RUN=perhaps":                         `DRY_RUN = "perhaps": must be true or false`,
		"ENABLE_SQS_TERMINATION_DRAINING=true":    `"nth-queue config import"`,
		"WEBHOOK_PROXY=http://me:hunter2@proxy":   "a URL without a password",
	} {
		name, value, _ := strings.Cut(settings, "=")
		manifest := fmt.Sprintf("spec: {containers: [{env: [{name: %s, value: %q}]}]}", name, value)
		status, stdout, stderr := call(t, "config import "+file(t, manifest))
		switch {
		case want == "":
			if status != 0 || stderr != "" || !strings.Contains(stdout, `action = "ignore"`) {
				t.Errorf("%s: status %d: %s%s", settings, status, stdout, stderr)
			}
		case status != 78 || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "hunter2"):
			t.Errorf("%s: status %d, on standard error %q, want 78 and %q:\n%s", settings, status, stderr, want, stdout)
		}
	}
}

const examples = "../../bottlerocket/"

func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The examples of user data hold the settings in nth.toml. Bottlerocket itself refuses what it does not know.
func TestBottlerocket_UserDataHasGoodSettings(t *testing.T) {
	settings, cfg := shipped(t, examples+"nth.toml"), config.Default()
	if err := config.Decode("nth.toml", []byte(settings), &cfg); err != nil || reflect.DeepEqual(cfg, config.Default()) {
		t.Errorf("nth.toml sets nothing: %v", err)
	}
	for _, name := range []string{"superpowered.toml", "karpenter.yaml"} {
		text := oneLine(shipped(t, examples+name))
		for _, part := range []string{
			"[settings.host-containers.nth] enabled = true superpowered = true ", ` source = "`,
			fmt.Sprintf(" user-data = %q", base64.StdEncoding.EncodeToString([]byte(settings))),
		} {
			if !strings.Contains(text, part) {
				t.Errorf("%s does not have %s", name, part)
			}
		}
	}
}
