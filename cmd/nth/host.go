package main

import (
	"time"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/identity"
)

// containerStop is how long a drain may take in a host container that is being stopped. Bottlerocket kills the container 20 s after SIGTERM. The
// remaining seconds are for the report of how far the drain has come.
const containerStop = 14 * time.Second

// hostInfo is where nth runs: on a machine, or in a host container of Bottlerocket. detectHost finds out which, once, at the start. The functions
// that return the program's commands are methods of hostInfo.
type hostInfo struct {
	identity.Container
	contained bool // in a host container
}

// detectHost finds out where this process runs.
func detectHost() hostInfo {
	container, found := identity.FindContainer("/")
	return hostInfo{container, found}
}

// newKubelet returns the source of the kubelet's identity, which sends no request yet. Unless requested is nil, it is called after each request to
// the API server, with the HTTP status.
func (h hostInfo) newKubelet(cfg config.Config, requested func(method string, status int)) *identity.Kubelet {
	version, _ := cli.BuildVersion()
	return identity.New(identity.Options{
		Kubeconfig: cfg.Kubernetes.Kubeconfig, Root: cfg.HostRoot,
		ClientOptions: identity.ClientOptions{UserAgent: "nth/" + version, Requested: requested},
	})
}
