package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// settlePlugin puts what the options say in the place of the kubeconfig's exec plugin, if it has one, and says what
// proves the identity.
func (k *Kubelet) settlePlugin(config *rest.Config) (proof string, err error) {
	plugin := config.ExecProvider
	proof = credential(config)
	switch {
	case plugin == nil:
	case k.opts.Token != nil:
		cluster, region, err := eksCluster(plugin)
		if err != nil {
			return "", err
		}
		config.ExecProvider = nil
		source := &tokens{make: func(ctx context.Context) (string, time.Time, error) { return k.opts.Token(ctx, cluster, region) }}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bearer{next, source} })
		return fmt.Sprintf("a token for the EKS cluster %s, of the instance's role,", cluster), nil
	case len(k.opts.Launcher) > 0:
		plugin.Args = slices.Concat(k.opts.Launcher[1:], []string{k.belowRoot(plugin.Command)}, plugin.Args)
		plugin.Command = k.opts.Launcher[0]
	}
	return proof, nil
}

// belowRoot is a command as it is called where Root is the root: client-go has made a path that begins at the kubeconfig
// one that begins at our own root.
func (k *Kubelet) belowRoot(command string) string {
	if below, err := filepath.Rel(k.opts.Root, command); err == nil && filepath.IsLocal(below) {
		return filepath.Join("/", below)
	}
	return command
}

// eksCluster reads from the command line of an exec plugin for EKS, "aws eks get-token" or "aws-iam-authenticator token",
// which cluster it makes tokens for. A plugin that takes on another identity than the instance's is an error.
func eksCluster(plugin *api.ExecConfig) (cluster, region string, err error) {
	name := filepath.Base(plugin.Command)
	known := name == "aws" && slices.Contains(plugin.Args, "get-token") ||
		name == "aws-iam-authenticator" && slices.Contains(plugin.Args, "token")
	if !known {
		return "", "", fmt.Errorf("the exec plugin %s is none of those that make tokens for EKS, and has to be run", name)
	}
	for _, variable := range plugin.Env {
		if variable.Name == "AWS_REGION" || variable.Name == "AWS_DEFAULT_REGION" {
			region = variable.Value
		}
	}
	for i, arg := range plugin.Args {
		flag, value, whole := strings.Cut(arg, "=")
		if !whole && i+1 < len(plugin.Args) {
			value = plugin.Args[i+1]
		}
		switch flag {
		case "-i", "--cluster-id", "--cluster-name":
			cluster = value
		case "--region":
			region = value
		case "-r", "--role", "--role-arn", "--profile":
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, another identity than the instance's, and has to be run", name, flag)
		}
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
