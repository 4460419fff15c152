package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/cmd/internal/settings"
	queue "github.com/nth-project/nth/cmd/nth-queue"
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
