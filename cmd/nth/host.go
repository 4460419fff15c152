package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nth-project/nth/cmd/internal/cli"
	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ekstoken"
	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/systemd"
)

// containerStop is how long a drain may take in a host container that is stopped: Bottlerocket kills it 20 s after asking it to stop, and
// some seconds are left to report how far the drain has come.
const containerStop = 15 * time.Second

// errNoHost is why a host container that is not superpowered gets no notice of shutdowns.
var errNoHost = errors.New("a host container that is not superpowered has no way to the host's logind")

// hostInfo is where nth runs: on a machine, or in a host container of Bottlerocket. detectHost finds out which, once, at the start. The commands
// of the program are its methods.
type hostInfo struct {
	identity.Container      // on a machine, only API is set
	contained          bool // in a host container
}

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
func (h hostInfo) newKubelet(cfg config.Config, metadata *imds.Source, requested func(method string, status int)) *identity.Kubelet {
	options := h.identityOptions(cfg, metadata.Document)
	options.Requested = requested
	return identity.New(options)
}

// identityOptions returns where the kubelet's identity is found, by the settings. metadata reads a document of the metadata service.
func (h hostInfo) identityOptions(cfg config.Config, metadata func(context.Context, string) ([]byte, error)) identity.Options {
	version, _ := cli.BuildVersion()
	options := identity.Options{Kubeconfig: cfg.Kubernetes.Kubeconfig, Root: cfg.HostRoot}
	options.UserAgent = "nth/" + version
	options.Proxy = h.proxy(cfg)
	// A container that does not see the host's files asks Bottlerocket's API for the kubeconfig.
	byAPI := h.noNotice(cfg) != nil && cfg.Kubernetes.Kubeconfig == ""
	if byAPI {
		options.Read = h.API.Kubeconfig
	}
	if byAPI || cfg.Kubernetes.Token != config.PluginToken {
		options.Token = ekstoken.New(metadata, environmentRegion()).Token
		// The exec plugin that Bottlerocket's API names is not in the container.
		options.Fallback = !byAPI && cfg.Kubernetes.Token == config.AutoToken
	}
	return options
}

// environmentRegion is the region in nth's environment; "" stands for the instance's region. EKS tokens are for this region if the arguments of
// the kubeconfig's exec plugin name none: the plugin would take the region from its environment, too.
func environmentRegion() string {
	return cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
}

// noNotice returns why nth gets no notice of shutdowns here, since it does not see the host; nil if it sees the host.
func (h hostInfo) noNotice(cfg config.Config) error {
	if h.contained && cfg.HostRoot == "" {
		return errNoHost
	}
	return nil
}

// system returns what newShutdown needs to know about the host.
func (h hostInfo) system(cfg config.Config) system {
	host := system{host: logind.Host(cfg.HostRoot), limit: stopLimit, noNotice: h.noNotice(cfg)}
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

// container reports about a host container, which has no service, catalog or drop-in.
func (c *check) container(cfg config.Config) {
	switch {
	case c.host.Host != "":
		c.OK("container", "a superpowered host container of Bottlerocket, with the host's file system at %s", c.host.Host)
	case c.host.noNotice(cfg) != nil:
		c.OK("container", "a host container of Bottlerocket; no notice of shutdowns: %s", c.host.noNotice(cfg))
	default:
		c.OK("container", "a host container of Bottlerocket, with the host's file system at %s", cfg.HostRoot)
	}
}

// kubeletUnits are the names of the kubelet's unit: on images of Amazon, Bottlerocket and kubeadm, and of Ubuntu for EKS.
var kubeletUnits = []string{"kubelet.service", "snap.kubelet-eks.daemon.service"}

// proxy returns a function that finds the proxy for the API server: the one in nth's own environment, or else the one in the kubelet's. The
// latter is read from the files of the kubelet's unit.
func (h hostInfo) proxy(cfg config.Config) func(context.Context) (identity.Proxy, error) {
	own := identity.ProxyOf(os.Environ(), "nth's own environment")
	complete := h.noNotice(cfg) != nil // Bottlerocket gives such a container the proxy of the host's settings.
	return func(context.Context) (identity.Proxy, error) {
		if own.HTTPS != "" || own.HTTP != "" || complete {
			return own, nil
		}
		unit, variables, err := systemd.ReadEnvironment(cfg.HostRoot, kubeletUnits...)
		if err != nil || unit == "" {
			return own, err
		}
		return own.Or(identity.ProxyOf(variables, "the environment of "+unit)), nil
	}
}

// proxy reports which proxy the environments name, if any.
func (c *check) proxy(ctx context.Context, cfg config.Config) {
	found, err := c.host.proxy(cfg)(ctx)
	ignored := found.PassedOver()
	switch {
	case err != nil:
		c.Warn("proxy", "the kubelet's proxy is unknown: %s", err)
	case len(ignored) > 0:
		c.Warn("proxy", "%s in %s is not the URL of a proxy, so the kubelet and nth ignore it; a %% in a password is written as %%25",
			strings.Join(ignored, " and "), found.From)
	case found == identity.Proxy{From: found.From, None: found.None}: // It has no URL.
		c.OK("proxy", "neither nth's own environment nor the kubelet's names one")
	default:
		c.OK("proxy", "%s names %s", found.From, found)
	}
}

// proxyInUse reports the proxy through which the identity reaches the API server; nothing without a proxy.
func (c *check) proxyInUse(id identity.Identity) {
	if id.Proxy == identity.OfTheKubeconfig {
		c.OK("proxy", "the API server is reached through the one that the kubeconfig names (proxy-url)")
	} else if address := id.Proxy.For(id.Server); address != "" {
		c.OK("proxy", "the API server is reached through %s", address)
	}
}
