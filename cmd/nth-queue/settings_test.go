package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
)

func TestSettings_TheKubeconfigIsTheCredentialUnlessOneIsNamed(t *testing.T) {
	dir := t.TempDir()
	credential, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "nth-queue.toml")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	for _, row := range []struct{ settings, credential, want string }{
		{"", "apiVersion: v1", credential},
		{"[kubernetes]\nkubeconfig = \"/set\"\n", "apiVersion: v1", "/set"},
		{"", "\n", ""}, // SetCredential= of the unit stands in for a missing file.
	} {
		for name, text := range map[string]string{file: row.settings, credential: row.credential} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var stdout, stderr bytes.Buffer
		status := queue.Run(t.Context(), []string{"config", "--config", file}, &stdout, &stderr)
		if want := fmt.Sprintf("kubeconfig = %q\n", row.want); status != 0 || !strings.Contains(stdout.String(), want) {
			t.Errorf("%+v: status %d, %s\n%s", row, status, &stderr, &stdout)
		}
	}
}

func TestImport_QueueMode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "old")
	for settings, want := range map[string]string{
		"{name: ENABLE_SQS_TERMINATION_DRAINING, value: true}, {name: QUEUE_URL, value: 'https://sqs.eu-west-1.amazonaws.com/123456789012/nth'}": "",
		"{name: ENABLE_SQS_TERMINATION_DRAINING, value: true}, {name: QUEUE_URL, value: somewhere}":                                              `: queue.url = "somewhere": must be`,
		"{name: ENABLE_SPOT_INTERRUPTION_DRAINING, value: true}":                                                                                 `"nth config import"`,
	} {
		if err := os.WriteFile(file, []byte("spec: {containers: [{env: ["+settings+"]}]}"), 0o600); err != nil {
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

// A process that is given the public URL, and one with that of a VPC endpoint, must not both lead.
func TestLease_IsOneForAllFormsOfAQueuesURL(t *testing.T) {
	t.Parallel()
	const region = "eu-central-1"
	lease := queue.LeaseOf("https://sqs.eu-central-1.amazonaws.com/123456789012/interruptions", region)
	for url, same := range map[string]bool{
		"https://eu-central-1.queue.amazonaws.com/123456789012/interruptions":               true,
		"https://vpce-0a-1b.sqs.eu-central-1.vpce.amazonaws.com/123456789012/interruptions": true,
		"https://sqs-fips.eu-central-1.amazonaws.com/123456789012/interruptions/":           true,
		"https://sqs.internal.example/123456789012/interruptions":                           true,
		"https://sqs.eu-west-1.amazonaws.com/123456789012/interruptions":                    false,
		"https://sqs.eu-central-1.amazonaws.com/123456789012/others":                        false,
		"https://sqs.eu-central-1.amazonaws.com/interruptions":                              false,
	} {
		if got := queue.LeaseOf(url, region); (got == lease) != same {
			t.Errorf("the Lease of %s is %s, and that of the public URL %s", url, got, lease)
		}
	}
}

func TestTheHooksOfBothTransitionsAreThoseOfTheSettings(t *testing.T) {
	t.Parallel()
	cfg := config.DefaultQueue()
	cfg.Events.ASGTermination.Hooks, cfg.Fleet.LaunchHooks, cfg.Events.ASGTermination.OnIncomplete = []string{"drain"}, []string{"ready"}, "abandon"
	got := queue.HookSettings(cfg)
	if !got.Complete || !got.Abandon || !slices.Equal(got.Hooks, []string{"drain"}) || !slices.Equal(got.LaunchHooks, []string{"ready"}) {
		t.Errorf("%+v", got)
	}
}
