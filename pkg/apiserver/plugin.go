package apiserver

import (
	"cmp"
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
func settlePlugin(config *rest.Config, opts Options) (proof string, err error) {
	plugin := config.ExecProvider
	proof = credential(config)
	if plugin == nil {
		return proof, nil
	}
	if opts.Token != nil {
		cluster, region, err := eksCluster(plugin)
		if err != nil {
			return "", err
		}
		config.ExecProvider = nil
		source := &tokens{make: func(ctx context.Context) (string, time.Time, error) { return opts.Token(ctx, cluster, region) }}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bearer{next, source} })
		return fmt.Sprintf("a token for the EKS cluster %s, of %s,", cluster, cmp.Or(opts.Role, "the instance's role")), nil
	}
	plugin.StdinUnavailable = true // A daemon has nobody to ask.
	if opts.Launch != nil {
		opts.Launch(plugin)
	}
	return proof, nil
}

// eksCluster reads from the command line of an exec plugin for EKS, "aws eks get-token" or "aws-iam-authenticator token",
// which cluster it makes tokens for. A plugin that takes on another identity is an error.
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
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, for another identity, and has to be run", name, flag)
		}
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
