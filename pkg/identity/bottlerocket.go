package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/nth-project/nth/pkg/kube"
)

// The paths in a host container.
const (
	containerHome = ".bottlerocket/host-containers/current"
	containerHost = ".bottlerocket/rootfs"
	containerAPI  = "run/api.sock"
)

// Container is a host container of Bottlerocket, as seen from within. A superpowered one sees the host's file system, with the kubelet's
// kubeconfig and the socket of D-Bus. Sources: https://bottlerocket.dev/en/os/latest/#/concepts/host-containers/, and the code of host-ctr,
// which mounts these paths.
type Container struct {
	// UserData is the file with the value of "settings.host-containers.NAME.user-data", which need not exist, and
	// StateDirectory a directory that survives the container and reboots.
	UserData, StateDirectory string
	// Host is the mounted root directory of the host; empty if the container is not superpowered.
	Host string
	API  Bottlerocket
}

// FindContainer looks for the paths of a host container below root, which is "/" for this process. It returns false if this process runs in no
// host container: only Container.API is set then.
func FindContainer(root string) (Container, bool) {
	c := Container{API: Bottlerocket(filepath.Join(root, containerAPI))}
	if !exists(filepath.Join(root, containerHome)) {
		return c, false
	}
	c.UserData = filepath.Join(root, containerHome, "user-data")
	c.StateDirectory = filepath.Join(root, containerHome, "state")
	if path := filepath.Join(root, containerHost); exists(path) {
		c.Host = path
	}
	return c, true
}

// exists reports whether a path exists. A path that cannot be examined counts as one that does.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// responseLimit is the most that is read of a response of Bottlerocket's API, in bytes. The longest setting is the cluster's certificate.
const responseLimit = 1 << 20

// bottlerocketKeys are the settings that are requested.
var bottlerocketKeys = []string{
	"settings.kubernetes.api-server", "settings.kubernetes.cluster-certificate", "settings.kubernetes.cluster-name",
	"settings.kubernetes.authentication-mode", "settings.aws.region",
}

// bottlerocketSettings are the values of those keys, as far as they are set.
type bottlerocketSettings struct {
	Kubernetes struct {
		APIServer          string `json:"api-server"`
		ClusterCertificate string `json:"cluster-certificate"` // PEM, in base64
		ClusterName        string `json:"cluster-name"`
		AuthenticationMode string `json:"authentication-mode"`
	} `json:"kubernetes"`
	AWS struct {
		Region string `json:"region"`
	} `json:"aws"`
}

// Bottlerocket is the path of the socket of Bottlerocket's API. A host container that is not superpowered has nothing else of the host; the
// settings there have what the kubelet's kubeconfig is made of.
type Bottlerocket string

// Kubeconfig makes a kubeconfig like the one of Bottlerocket's kubelet, from the same settings. from says where the settings are from, for
// messages. The error is an fs.ErrNotExist if the API's socket or the settings do not exist yet. Options.Read calls it.
func (a Bottlerocket) Kubeconfig(ctx context.Context) (from string, text []byte, err error) {
	from = "the settings at " + string(a)
	var s bottlerocketSettings
	if err := a.get(ctx, "/settings?keys="+url.QueryEscape(strings.Join(bottlerocketKeys, ",")), &s); err != nil {
		return from, nil, fmt.Errorf("asking Bottlerocket for its cluster: %w", err)
	}
	k := s.Kubernetes
	switch {
	case k.AuthenticationMode == "tls":
		return from, nil, errors.New("asking Bottlerocket for its cluster: its kubelet has a certificate " +
			`(settings.kubernetes.authentication-mode is "tls"), which only a superpowered host container can use`)
	case k.APIServer == "" || k.ClusterCertificate == "" || k.ClusterName == "":
		return from, nil, fmt.Errorf("asking Bottlerocket for its cluster: settings.kubernetes has no api-server, "+
			"cluster-certificate or cluster-name: %w", fs.ErrNotExist)
	}
	text, err = kubeconfigOf(s)
	return from, text, err
}

// kubeconfigOf returns a kubeconfig as JSON, which is YAML, too. Its user gets tokens from the exec plugin that Bottlerocket's kubelet uses.
func kubeconfigOf(s bottlerocketSettings) ([]byte, error) {
	type object = map[string]any
	args := []string{"token", "-i", s.Kubernetes.ClusterName}
	if s.AWS.Region != "" {
		args = append(args, "--region", s.AWS.Region)
	}
	return json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "kubelet",
		"clusters": []object{{"name": "kubernetes", "cluster": object{
			"server": s.Kubernetes.APIServer, "certificate-authority-data": s.Kubernetes.ClusterCertificate,
		}}},
		"contexts": []object{{"name": "kubelet", "context": object{"cluster": "kubernetes", "user": "kubelet"}}},
		"users": []object{{"name": "kubelet", "user": object{"exec": object{
			"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/usr/bin/aws-iam-authenticator", "args": args,
			"interactiveMode": "Never",
		}}}},
	})
}

// get requests a path of Bottlerocket's API and decodes the JSON in the response into the value that into points to.
func (a Bottlerocket) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, kube.Settings)
	defer cancel()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", string(a))
		},
		DisableKeepAlives: true, // The transport is used once.
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // It was only read.
	body, err := io.ReadAll(io.LimitReader(response.Body, responseLimit))
	if err != nil {
		return fmt.Errorf("reading what %s answers: %w", a, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %.100q", a, response.Status, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("reading what %s answers: %w", a, err)
	}
	return nil
}
