package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImport_ValidatesBeforeItPrints(t *testing.T) {
	file := filepath.Join(t.TempDir(), "old")
	for settings, want := range map[string]string{
		"ENABLE_SPOT_INTERRUPTION_DRAINING=false": "", // is right
		"INSTANCE_METADATA_URL=elsewhere":         ": imds.endpoint",
		"DRY_RUN=perhaps":                         `DRY_RUN = "perhaps": must be true or false`,
		"ENABLE_SQS_TERMINATION_DRAINING=true":    `"nth-queue config import"`,
		"WEBHOOK_PROXY=http://me:hunter2@proxy":   "a URL without a password",
	} {
		if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		status, stdout, stderr := call(t, "config import "+file)
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
