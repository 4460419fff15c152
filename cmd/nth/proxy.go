package main

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/logind"
	"github.com/nth-project/nth/pkg/systemd"
)

// kubeletUnits are the kubelet's names: Amazon's, Bottlerocket's and kubeadm's images', and Ubuntu's for EKS.
var kubeletUnits = []string{"kubelet.service", "snap.kubelet-eks.daemon.service"}

// proxy returns a function that finds the proxy for the API server: that of nth's own environment or else the kubelet's, as
// systemd knows it.
func (s surroundings) proxy(cfg config.Config) func(context.Context) (kubelet.Proxy, error) {
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
	found, err := lookAround().proxy(cfg)(ctx)
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
