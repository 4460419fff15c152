package main

import (
	"github.com/nth-project/nth/cmd/internal/settings"
	"github.com/nth-project/nth/pkg/config"
)

// ConfigWith reads the settings with credentials, and returns what was found out about the kubeconfig's, too.
func ConfigWith(path string, given settings.Given) (config.Queue, []settings.Finding, error) {
	cfg, looked, err := own.ReadWith(path, given)
	return cfg, looked.Identity, err
}
