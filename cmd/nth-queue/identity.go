package main

import (
	"context"
	"os"

	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/apiserver"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ekstoken"
	"github.com/nth-project/nth/pkg/fleet"
)

// Values of kubernetes.token.
const (
	autoToken   = "auto"
	pluginToken = "plugin"
)

// connect makes a client of the API server, by the settings. It sends no request. requested, if not nil, is told of each
// that is sent later.
func connect(ctx context.Context, cfg config.Queue, requested func(method string, status int)) (apiserver.Client, error) {
	version, _ := program.BuildVersion()
	options := apiserver.Options{UserAgent: "nth-queue/" + version, Requested: requested}
	if cfg.Kubernetes.Token != pluginToken {
		account, err := awsConfig(ctx, cfg)
		if err != nil {
			return apiserver.Client{}, err
		}
		options.Token, options.Role = ekstoken.Of(account).Token, "the role that AWS is asked with"
		options.Fallback = cfg.Kubernetes.Token == autoToken
	}
	return apiserver.Connect(cfg.Kubernetes.Kubeconfig, options)
}

// clients makes a client of the API server for all that is done, and another one for Leases. They share no connection, so that in a storm
// the renewal of this process's Lease waits behind no other request.
func clients(ctx context.Context, cfg config.Queue, requested func(method string, status int)) (all, leases apiserver.Client, err error) {
	if all, err = connect(ctx, cfg, requested); err == nil {
		leases, err = connect(ctx, cfg, requested)
	}
	return all, leases, err
}

// ownPod is the pod that this process runs in, as the pod's manifest tells it in the environment; nothing elsewhere.
func ownPod() fleet.Own {
	return fleet.Own{Node: os.Getenv("NODE_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME")}
}
