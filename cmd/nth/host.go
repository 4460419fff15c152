package main

import (
	"errors"
	"time"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/logind"
)

// containerStop is how long a drain may take in a host container that is stopped: Bottlerocket kills it 20 s after asking it to stop, and
// some seconds are left to report how far the drain has come.
const containerStop = 14 * time.Second

// hostInfo is where nth runs: on a machine, or in a host container of Bottlerocket. detectHost finds out which, once, at the start. The commands
// of the program are its methods.
type hostInfo struct {
	identity.Container
	contained bool // in a host container
}

// errNoHost means that nth runs in a host container that cannot see the host.
var errNoHost = errors.New("this host container does not see the host: set settings.host-containers.NAME.superpowered to true")

// detectHost finds out where this process runs.
func detectHost() hostInfo {
	container, found := identity.FindContainer("/")
	return hostInfo{container, found}
}

// newKubelet returns the kubelet's identity. requested is called for each request to the API server, unless it is nil.
func (h hostInfo) newKubelet(cfg config.Config, requested func(method string, status int)) *identity.Kubelet {
	version, _ := cli.BuildVersion()
	return identity.New(identity.Options{
		Kubeconfig: cfg.Kubernetes.Kubeconfig, Root: cfg.HostRoot,
		ClientOptions: identity.ClientOptions{UserAgent: "nth/" + version, Requested: requested},
	})
}

// system returns what newShutdown needs to know about the host.
func (h hostInfo) system(cfg config.Config) system {
	host := system{host: logind.Host(cfg.HostRoot), limit: stopLimit}
	if h.contained {
		host.limit = containerStop
	}
	return host
}
