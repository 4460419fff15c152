package main_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/cmd/internal/settings"
	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/config"
)

func TestTheKubeconfigIsTheCredentialUnlessTheSettingsNameOne(t *testing.T) {
	given := settings.Credential{Name: "kubeconfig", Source: "LoadCredential=", File: "/given"}
	sealed := settings.Credential{Name: "kubeconfig", Source: "LoadCredential=", Sealed: "it is encrypted"}
	missing := settings.Credential{Name: "kubeconfig", Source: "LoadCredential=", Fault: errors.New("it is not there")}
	const name = "the credential kubeconfig (LoadCredential=)"
	for what, row := range map[string]struct {
		settings string
		given    settings.Credential
		want     string
		found    settings.Finding // but for its fault
		wrong    bool
	}{
		"none":                    {"", settings.Credential{}, "", settings.Finding{}, false},
		"a credential":            {"", given, "/given", settings.Finding{Source: name}, false},
		"one of the settings":     {"[kubernetes]\nkubeconfig = \"/set\"", given, "/set", settings.Finding{Source: name, Passed: "kubernetes.kubeconfig goes before it"}, false},
		"one that is encrypted":   {"", sealed, "", settings.Finding{Source: name, Passed: "it is encrypted"}, false},
		"one that is missing":     {"", missing, "", settings.Finding{Source: name}, true},
		"missing, and not needed": {"[kubernetes]\nkubeconfig = \"/set\"", missing, "/set", settings.Finding{Source: name, Passed: "kubernetes.kubeconfig goes before it"}, true},
	} {
		t.Run(what, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "nth-queue.toml")
			if err := os.WriteFile(file, []byte(row.settings), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, found, err := queue.ConfigWith(file, func(name string) settings.Credential {
				if name != row.given.Name {
					return settings.Credential{}
				}
				return row.given
			})
			if _, fatal := settings.Degraded(err); fatal != nil || (err != nil) != row.wrong || cfg.Kubernetes.Kubeconfig != row.want {
				t.Errorf("the kubeconfig is %q, %v; want %q", cfg.Kubernetes.Kubeconfig, err, row.want)
			}
			if len(found) == 0 {
				found = []settings.Finding{{}}
			}
			if found[0].Fault = nil; len(found) != 1 || found[0] != row.found {
				t.Errorf("found is %+v, want %+v", found, row.found)
			}
		})
	}
}

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
