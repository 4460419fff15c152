package main_test

import (
	"strings"
	"testing"

	nth "github.com/nth-project/nth/cmd/nth"
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
		status, stdout, stderr := call(t, "config import "+file(t, settings))
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
