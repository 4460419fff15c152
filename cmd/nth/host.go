package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/bottlerocket"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ekstoken"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/systemd"
)

// containerStop is how long nth's own stop job may drain for in a host container: Bottlerocket kills what has not ended
// 20 s after it was asked to, and a few are left to say how far the drain has come.
const containerStop = 15 * time.Second

// errNoHost is why a host container that is not superpowered hears of no shutdown.
var errNoHost = errors.New("a host container that is not superpowered has no way to the host's logind")

// hostInfo is where nth finds itself: on a machine, or in a host container of Bottlerocket. It is found out once, at the start.
type hostInfo struct {
	bottlerocket.Container
	contained bool
}

func detectHost() hostInfo {
	container, found := bottlerocket.Find("/")
	return hostInfo{container, found}
}

// place is where the settings are, and what they are without a word from anybody.
func (s hostInfo) place() config.Place[config.Config, *config.Config] {
	place := config.Usual()
	if !s.contained {
		return place
	}
	place.File = s.UserData
	place.Defaults.StateDirectory = s.StateDirectory
	place.Defaults.HostRoot = s.Host
	if s.Host == "" {
		place.Defaults.Kubernetes.Source = config.BottlerocketSource
	}
	return place
}

// settle replaces what the settings leave to the surroundings.
func (s hostInfo) settle(cfg *config.Config) {
	if s.contained && cfg.Log.Format == "auto" {
		cfg.Log.Format = "prefix"
	}
}

// identityOptions say where the identity is found, by the settings.
func (s hostInfo) identityOptions(cfg config.Config, metadata func(context.Context, string) ([]byte, error)) kubelet.Options {
	version, _ := program.BuildVersion()
	options := kubelet.Options{Kubeconfig: cfg.Kubernetes.Kubeconfig, Root: cfg.HostRoot, UserAgent: "nth/" + version}
	if cfg.HostRoot != "" {
		options.Launcher = []string{"/proc/self/exe", inRoot, cfg.HostRoot}
	}
	options.Proxy = s.proxy(cfg)
	bottlerockets := cfg.Kubernetes.Source == config.BottlerocketSource
	if bottlerockets {
		options.Read = s.API.Kubeconfig
	}
	if bottlerockets || cfg.Kubernetes.Token != config.PluginToken {
		options.Token = ekstoken.New(metadata, ownRegion(cfg)).Token
		options.Fallback = !bottlerockets && cfg.Kubernetes.Token == config.AutoToken // a plugin of Bottlerocket's settings is not here
	}
	return options
}

// ownRegion is where tokens for EKS are made unless the plugin is told another: by the settings, or by the environment, which the
// plugin would have, too. "" is where the instance is.
func ownRegion(cfg config.Config) string {
	return cmp.Or(cfg.AWS.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
}

// deaf is why shutdowns cannot be heard of, nil if they can.
func (s hostInfo) deaf(cfg config.Config) error {
	if s.contained && cfg.HostRoot == "" {
		return errNoHost
	}
	return nil
}

// system is what nth's part that lives with the end of the system knows of where it runs.
func (s hostInfo) system(cfg config.Config) system {
	found := system{host: logind.Host(cfg.HostRoot), limit: stopLimit, deaf: s.deaf(cfg)}
	if s.contained {
		found.limit = containerStop
	}
	return found
}

// logStream is where what is logged goes.
func logStream(cfg config.Log, to program.Streams) io.Writer {
	if cfg.Format == "prefix" {
		return to.Out
	}
	return to.Err
}

// complainContained writes what ends the daemon in a host container as all else that it logs there, since standard error
// is the console's too. The error that it returns has been told, and stands for the same exit status.
func complainContained(out io.Writer, err error) error {
	message, text := daemon.LastWords(err)
	daemon.Errors(daemon.NewLogger("nth", config.Log{Level: "info", Format: "prefix"}, out), message, text)
	if _, wrongConfig := errors.AsType[program.ConfigError](err); wrongConfig {
		return errToldConfig
	}
	return program.ErrTold
}

// container checks a host container: there is no service, catalog or drop-in in one.
func (c *check) container(cfg config.Config) {
	switch {
	case c.host.Host != "":
		c.OK("container", "a superpowered host container of Bottlerocket, with the host's file system at %s", c.host.Host)
	case c.host.deaf(cfg) != nil:
		c.OK("container", "a host container of Bottlerocket; no notice of shutdowns: %s", c.host.deaf(cfg))
	default:
		c.OK("container", "a host container of Bottlerocket, with the host's file system at %s", cfg.HostRoot)
	}
}

// kubeletUnits are the kubelet's names: Amazon's, Bottlerocket's and kubeadm's images', and Ubuntu's for EKS.
var kubeletUnits = []string{"kubelet.service", "snap.kubelet-eks.daemon.service"}

// proxy returns a function that finds the proxy for the API server: that of nth's own environment or else the kubelet's, as
// systemd knows it.
func (s hostInfo) proxy(cfg config.Config) func(context.Context) (kubelet.Proxy, error) {
	own := kubelet.ProxyOf(os.Environ(), "nth's own environment")
	// Without a way to the host, the environment is from its settings.
	if own.HTTPS != "" || own.HTTP != "" || s.deaf(cfg) != nil {
		return func(context.Context) (kubelet.Proxy, error) { return own, nil }
	}
	return func(ctx context.Context) (kubelet.Proxy, error) {
		unit, variables, files, err := logind.Host(cfg.HostRoot).Environment(ctx, kubeletUnits...)
		from := ""
		if err != nil {
			unit, variables, files, err = systemd.ReadEnvironment(cfg.HostRoot, kubeletUnits...)
			from = " by its files, as systemd cannot be asked,"
		}
		if err != nil || unit == "" {
			return own, err
		}
		read, err := systemd.ReadEnvironmentFiles(cfg.HostRoot, files)
		if err != nil {
			return own, err
		}
		return own.Or(kubelet.ProxyOf(slices.Concat(variables, read), "the environment of "+unit+from)), nil
	}
}

// proxy tells which proxy there is, if any.
func (c *check) proxy(ctx context.Context, cfg config.Config) {
	found, err := c.host.proxy(cfg)(ctx)
	wrong := found.PassedOver()
	switch {
	case err != nil:
		c.Warn("proxy", "the kubelet's is not known: %s", err)
	case len(wrong) > 0:
		c.Warn("proxy", "what %s says in %s is no address of a proxy, and is passed over by the kubelet and by nth; a %% in a password is written as %%25",
			strings.Join(wrong, " and "), found.From)
	case found == kubelet.Proxy{From: found.From, None: found.None}:
		c.OK("proxy", "neither nth's own environment nor the kubelet's names one")
	default:
		c.OK("proxy", "%s names %s", found.From, found)
	}
}

// way tells how the API server is reached.
func (c *check) way(id kubelet.Identity) {
	if id.Proxy == kubelet.OfTheKubeconfig {
		c.OK("proxy", "the API server is reached through the one that the kubeconfig names (proxy-url)")
	} else if address := id.Proxy.For(id.Server); address != "" {
		c.OK("proxy", "the API server is reached through %s", address)
	}
}
