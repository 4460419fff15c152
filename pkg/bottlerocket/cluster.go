package bottlerocket

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
	"strings"
	"time"
)

const (
	apiTimeout = 5 * time.Second
	// responseLimit is the most that is read of a response, in bytes. The longest setting is the cluster's certificate.
	responseLimit = 1 << 20
)

// keys are the settings that are requested.
var keys = []string{
	"settings.kubernetes.api-server", "settings.kubernetes.cluster-certificate", "settings.kubernetes.cluster-name",
	"settings.kubernetes.authentication-mode", "settings.aws.region",
}

// settings are the values of keys, as far as they are set.
type settings struct {
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

// Kubeconfig makes a kubeconfig like the one that Bottlerocket makes for its kubelet, from the same settings, and says where
// they are from. The error is an fs.ErrNotExist if the API or the settings do not exist yet.
func (a API) Kubeconfig(ctx context.Context) (from string, text []byte, err error) {
	from = "the settings at " + string(a)
	var s settings
	if err := a.get(ctx, "/settings?keys="+url.QueryEscape(strings.Join(keys, ",")), &s); err != nil {
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
	text, err = kubeconfig(s)
	return from, text, err
}

// kubeconfig returns a kubeconfig as JSON.
func kubeconfig(s settings) ([]byte, error) {
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

// get reads JSON from the API.
func (a API) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", string(a))
		},
		DisableKeepAlives: true,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
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
