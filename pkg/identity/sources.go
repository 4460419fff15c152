package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/kube"
)

// newKeeper returns the keeper of the credential that the kubeconfig's exec plugin or ClientOptions.Token makes, and describes it.
func newKeeper(config *rest.Config, opts ClientOptions) (k *keeper, configured string, err error) {
	run, err := newPlugin(config, opts.root, opts.environment)
	if err != nil {
		return nil, "", err
	}
	fromPlugin := source{name: "the exec plugin " + run.name, timeout: kube.Plugin, make: run.run}
	if opts.Token == nil {
		return &keeper{fetch: fromPlugin.fetch}, fromPlugin.name, nil
	}
	cluster, region, err := eksCluster(config.ExecProvider)
	if err != nil && opts.Fallback {
		return &keeper{fetch: fromPlugin.fetch}, fromPlugin.name, nil
	}
	if err != nil {
		return nil, "", err
	}
	own := source{
		name:    fmt.Sprintf("a token for the EKS cluster %s, of %s,", cluster, cmp.Or(opts.Role, "the instance's role")),
		timeout: kube.Token,
		make: func(ctx context.Context) (secret, error) {
			token, expires, err := opts.Token(ctx, cluster, region)
			return secret{token: token, expires: expires}, err
		},
	}
	if !opts.Fallback {
		return &keeper{fetch: own.fetch}, own.name, nil
	}
	return &keeper{fetch: (&either{first: own, second: fromPlugin}).fetch, alternates: true}, own.name, nil
}

// source is one way to obtain a credential.
type source struct {
	name    string
	timeout time.Duration
	make    func(ctx context.Context) (secret, error)
}

func (s source) fetch(ctx context.Context, _ bool) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	c, err := s.make(ctx)
	return credential{secret: c, source: s.name}, err
}

// either obtains a credential from the first source, or from the second if that fails. When a credential was refused, the two
// change places.
type either struct{ first, second source }

func (e *either) fetch(ctx context.Context, refused bool) (credential, error) {
	if refused {
		e.first, e.second = e.second, e.first
	}
	c, err := e.first.fetch(ctx, false)
	if err == nil {
		return c, nil
	}
	c, otherErr := e.second.fetch(ctx, false)
	if otherErr != nil {
		return c, fmt.Errorf("%w; %w", err, otherErr)
	}
	c.source = fmt.Sprintf("%s (%s)", c.source, err)
	return c, nil
}

// errNeedsPlugin is why Options.Token cannot replace a plugin.
var errNeedsPlugin = errors.New("and has to be run")

// eksCluster reads from the command line of an exec plugin for EKS, "aws eks get-token" or "aws-iam-authenticator token",
// which cluster it makes tokens for. It is an error if the plugin has other arguments, such as the name of another role.
func eksCluster(exec *api.ExecConfig) (cluster, region string, err error) {
	name := filepath.Base(exec.Command)
	var defaultRegion string
	subcommand := map[string]string{"aws": "eks get-token", "aws-iam-authenticator": "token"}[name]
	for _, variable := range exec.Env {
		switch variable.Name {
		case "AWS_REGION":
			region = variable.Value
		case "AWS_DEFAULT_REGION": // AWS_REGION takes precedence
			defaultRegion = variable.Value
		case "AWS_STS_REGIONAL_ENDPOINTS": // tokens name regional endpoints in any case
		default:
			return "", "", fmt.Errorf("the exec plugin %s is given the variable %s, %w", name, variable.Name, errNeedsPlugin)
		}
	}
	region = cmp.Or(region, defaultRegion)
	var words []string
	for i := 0; i < len(exec.Args); i++ {
		flag, value, hasValue := strings.Cut(exec.Args[i], "=")
		if !strings.HasPrefix(flag, "-") {
			words = append(words, exec.Args[i])
			continue
		}
		if !hasValue && i+1 < len(exec.Args) {
			i++
			value = exec.Args[i]
		}
		switch flag {
		case "-i", "--cluster-id", "--cluster-name":
			cluster = value
		case "--region":
			region = value
		case "--output": // JSON, as no kubelet understands anything else
		default:
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, %w", name, flag, errNeedsPlugin)
		}
	}
	if subcommand == "" || strings.Join(words, " ") != subcommand {
		return "", "", fmt.Errorf("the exec plugin %s is none of those that make tokens for EKS, %w", name, errNeedsPlugin)
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
