package main

import (
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
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

// place returns where the settings are, and the defaults.
func (h hostInfo) place() config.Place[config.Config, *config.Config] {
	place := config.Usual()
	if !h.contained {
		return place
	}
	place.File = h.UserData
	place.Defaults.StateDirectory = h.StateDirectory
	place.Defaults.HostRoot = h.Host
	return place
}

// settle sets what the settings leave to the host: with log.format "auto", a host container logs with priorities.
func (h hostInfo) settle(cfg *config.Config) {
	if h.contained && cfg.Log.Format == "auto" {
		cfg.Log.Format = "prefix"
	}
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

// logStream returns the stream to log to. A host container, whose format is "prefix", shows standard error on the console and keeps only
// standard output.
func logStream(cfg config.Log, cmd *cobra.Command) io.Writer {
	if cfg.Format == "prefix" {
		return cmd.OutOrStdout()
	}
	return cmd.ErrOrStderr()
}

// complainContained logs the error that ends the daemon in a host container, to standard output. cli.Run would print it to standard error, which
// a host container shows only on the console. The result ends the process with the same exit status and no other message.
func complainContained(out io.Writer, err error) error {
	message, lines := daemon.FinalMessage(err)
	daemon.LogErrors(daemon.NewLogger("nth", config.Log{Level: "info", Format: "prefix"}, out), message, lines)
	if _, wrongConfig := errors.AsType[cli.ConfigError](err); wrongConfig {
		return errReportedConfig
	}
	return cli.ErrReported
}

// container reports about a host container, which has no service or drop-in.
func (c *check) container() {
	if c.cfg.HostRoot == "" {
		c.Fail("container", "%s", errNoHost)
		return
	}
	c.OK("container", "a superpowered host container of Bottlerocket, with the host's file system at %s", c.cfg.HostRoot)
}
