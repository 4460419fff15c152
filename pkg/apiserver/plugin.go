package apiserver

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

	"github.com/nth-project/nth/pkg/plugin"
)

// makeLimit is how long it may take to make a token, if there is a plugin to be run after that. The metadata service is
// asked for credentials, and nobody else.
const makeLimit = 5 * time.Second

// fetched returns the keeper of the credential that the kubeconfig's exec plugin, or what the options put in its place, has
// to fetch, nil if there is none; and says what is to prove the identity.
func fetched(config *rest.Config, opts Options) (k *keeper, proof string, err error) {
	exec := config.ExecProvider
	if own := inKubeconfig(config); own != "" || exec == nil {
		return nil, cmp.Or(own, "nothing"), nil // what stands in the kubeconfig goes before a plugin
	}
	run, err := plugin.New(config, opts.Launch, opts.Environment)
	if err != nil {
		return nil, "", err
	}
	running := source{by: "the exec plugin " + run.Name(), limit: plugin.Limit, make: run.Run}
	if opts.Token == nil {
		return &keeper{fetch: running.fetch}, running.by, nil
	}
	cluster, region, err := eksCluster(exec)
	if err != nil && opts.Fallback {
		return &keeper{fetch: running.fetch}, running.by, nil
	}
	if err != nil {
		return nil, "", err
	}
	made := source{
		by:    fmt.Sprintf("a token for the EKS cluster %s, of %s,", cluster, cmp.Or(opts.Role, "the instance's role")),
		limit: makeLimit,
		make: func(ctx context.Context) (plugin.Credential, error) {
			token, expires, err := opts.Token(ctx, cluster, region)
			return plugin.Credential{Token: token, Expires: expires}, err
		},
	}
	if !opts.Fallback {
		return &keeper{fetch: made.fetch}, made.by, nil
	}
	return &keeper{fetch: (&either{first: made, second: running}).fetch, other: true}, made.by, nil
}

// source is one way to have a credential.
type source struct {
	by    string
	limit time.Duration
	make  func(ctx context.Context) (plugin.Credential, error)
}

func (s source) fetch(ctx context.Context, _ bool) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	c, err := s.make(ctx)
	return credential{Credential: c, by: s.by}, err
}

// either has a credential in one way, or in another where that fails. One that was refused is followed by one that was had
// in the other way.
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
	c.by = fmt.Sprintf("%s (%s)", c.by, OneLine(err))
	return c, nil
}

// errMore is why a plugin has to be run.
var errMore = errors.New("and has to be run")

// eksCluster reads from the command line of an exec plugin for EKS, "aws eks get-token" or "aws-iam-authenticator token",
// which cluster it makes tokens for. A plugin that is told anything else, another identity for one, is an error.
func eksCluster(exec *api.ExecConfig) (cluster, region string, err error) {
	name := filepath.Base(exec.Command)
	var fallback string
	words := map[string]string{"aws": "eks get-token", "aws-iam-authenticator": "token"}[name]
	for _, variable := range exec.Env {
		switch variable.Name {
		case "AWS_REGION":
			region = variable.Value
		case "AWS_DEFAULT_REGION": // counts where the other is not there
			fallback = variable.Value
		case "AWS_STS_REGIONAL_ENDPOINTS": // regional ones are asked in any case
		default:
			return "", "", fmt.Errorf("the exec plugin %s is given the variable %s, %w", name, variable.Name, errMore)
		}
	}
	region = cmp.Or(region, fallback)
	var said []string
	for i := 0; i < len(exec.Args); i++ {
		flag, value, whole := strings.Cut(exec.Args[i], "=")
		if !strings.HasPrefix(flag, "-") {
			said = append(said, exec.Args[i])
			continue
		}
		if i++; whole {
			i--
		} else if i < len(exec.Args) {
			value = exec.Args[i]
		}
		switch flag {
		case "-i", "--cluster-id", "--cluster-name":
			cluster = value
		case "--region":
			region = value
		case "--output": // is JSON, or else no kubelet would understand it
		default:
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, %w", name, flag, errMore)
		}
	}
	if words == "" || strings.Join(said, " ") != words {
		return "", "", fmt.Errorf("the exec plugin %s is none of those that make tokens for EKS, %w", name, errMore)
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
