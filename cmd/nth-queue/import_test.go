package main_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
)

func TestImport_QueueMode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "old")
	for settings, want := range map[string]string{
		"enableSqsTerminationDraining: true\nqueueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n": "",
		"enableSqsTerminationDraining: true\nqueueURL: somewhere\n":                                            `: queue.url = "somewhere": must be`,
		"enableSpotInterruptionDraining: true\n":                                                               `"nth config import"`,
	} {
		if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		status := queue.Run(t.Context(), []string{"config", "import", file}, &stdout, &stderr)
		if want != "" {
			if status != 78 || !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: status %d: %s", settings, status, &stderr)
			}
			continue
		}
		cfg := config.DefaultQueue()
		if err := config.Decode("nth-queue.toml", stdout.Bytes(), &cfg); status != 0 || err != nil || cfg.Fleet.ManagedTag == "" {
			t.Errorf("status %d (%v):\n%s%s", status, err, &stdout, &stderr)
		}
	}
}
