package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/rehearsal"
)

// stage is where a rehearsal takes place: this node, of which nothing is changed, or a cluster that is made up.
type stage struct {
	cfg      config.Config
	bootID   string
	borrowed *kubelet.Kubelet
	// cluster says in words what the cluster is.
	cluster string
	shut    func()
}

// identityLimit is how long a rehearsal waits for the API server to say whose the credential is.
const identityLimit = 15 * time.Second

// setStage finds this node as the service does, or by a kubeconfig. Where none is named and there is none to be had, the cluster is
// made up. A node that is real is only looked at.
func setStage(ctx context.Context, cfg config.Config, bootID, kubeconfig string) (*stage, error) {
	if kubeconfig != "" {
		absolute, err := filepath.Abs(kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("finding the kubeconfig: %w", err)
		}
		cfg.Kubernetes.Kubeconfig, cfg.HostRoot, cfg.Kubernetes.Source = absolute, "", config.Default().Kubernetes.Source
	}
	metadata, err := checkedSource(cfg) // the machine's own: the credential may need the instance's role
	if err != nil {
		return nil, err
	}
	borrowed := kubelet.New(lookAround().identityOptions(cfg, metadata.Document))
	limited, cancel := context.WithTimeout(ctx, identityLimit)
	defer cancel()
	id, err := borrowed.Identity(limited)
	switch {
	case err == nil:
		cfg.DryRun = true
		return &stage{
			cfg: cfg, bootID: bootID, borrowed: borrowed, shut: func() {},
			cluster: fmt.Sprintf("The node %s is real, at %s,\nand nothing is written there: this is a dry run, as if every pod went at once.", id.Node, id.Server),
		}, nil
	case kubeconfig != "":
		return nil, err
	}
	return makeUp(cfg, bootID, err)
}

// makeUp makes a cluster up, for want of a real one, which why tells.
func makeUp(cfg config.Config, bootID string, why error) (*stage, error) {
	url, shut, err := serve(rehearsal.New(bootID))
	if err != nil {
		return nil, err
	}
	cfg.DryRun = false // There is nothing that could be harmed.
	borrowed := kubelet.New(kubelet.Options{
		UserAgent: "nth-rehearse",
		Read: func(context.Context) (string, []byte, error) {
			return "a kubeconfig that is made up", rehearsal.Kubeconfig(url), nil
		},
	})
	var words strings.Builder
	words.WriteString("So is the cluster.\n")
	if errors.Is(why, kubelet.ErrNotYet) {
		words.WriteString("This machine is no node, so the node and its pods are made up:\n")
	} else {
		fmt.Fprintf(&words, "The node and its pods are made up, as this machine's own cannot be used: %s\n", why)
	}
	for _, line := range rehearsal.Describe() {
		words.WriteString("\n  " + line)
	}
	return &stage{cfg: cfg, bootID: bootID, borrowed: borrowed, cluster: words.String(), shut: shut}, nil
}

// found takes no notice of what proves the identity: it has been told.
func (*stage) found(kubelet.Identity) {}

func (s *stage) close() { s.shut() }

// serve serves on a free port of this machine's own, until shut is called.
func serve(handler http.Handler) (url string, shut func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("opening a port for a stand-in: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // It ends when it is shut.
	return "http://" + listener.Addr().String(), func() { _ = server.Close() }, nil
}
