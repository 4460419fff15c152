package main

import (
	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
)

// ConfigWith reads the settings with credentials, and returns what was found out about the kubeconfig's, too.
func ConfigWith(path string, given secrets.Given) (config.Queue, []webhooks.Finding, error) {
	cfg, looked, err := configWith(path, given)
	return cfg, looked.kubeconfig, err
}
