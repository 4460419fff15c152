package main_test

import (
	"os"
	"path/filepath"
	"testing"

	nth "github.com/nth-project/nth/cmd/nth"
)

func TestDryRunFlagGoesBeforeTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nth.toml")
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
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		cfg, err := nth.RunSettings(append(c.args, "--config", file)...)
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
