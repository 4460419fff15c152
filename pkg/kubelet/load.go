package kubelet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// dialPatience is how long one address of the API server may take to answer before the next one is tried; client-go
// waits for 30 s, a quarter of a spot notice.
const dialPatience = 5 * time.Second

// load makes an identity, of a node that is not known yet, from the kubeconfig at path with that text. No request is
// made.
func (k *Kubelet) load(path string, text []byte) (Identity, error) {
	config, err := k.restConfig(path, text)
	if err != nil {
		return Identity{}, unlessMissing(fmt.Errorf("reading the kubeconfig %s: %w", path, oneLine(err)))
	}
	fetched := config.ExecProvider != nil // by the plugin, or in its place
	proof, err := k.settlePlugin(config)
	if err != nil {
		return Identity{}, fmt.Errorf("using the kubeconfig %s: %w", path, err)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return Identity{}, unlessMissing(fmt.Errorf("using the kubeconfig %s: %w", path, oneLine(err)))
	}
	if fetched {
		httpClient.Transport = punctual{httpClient.Transport}
	}
	if k.opts.Requested != nil {
		httpClient.Transport = counted{next: httpClient.Transport, tell: k.opts.Requested}
	}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return Identity{}, fmt.Errorf("using the kubeconfig %s: %w", path, oneLine(err))
	}
	return Identity{Client: client, Source: path, Server: config.Host, Credential: proof}, nil
}

// unlessMissing turns an error about a file that the kubeconfig names, and that does not exist, into an ErrNotYet: the
// kubelet writes its first certificate when the cluster has signed it.
func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotYet, err)
	}
	return err
}

// restConfig reads a kubeconfig into a client's configuration.
func (k *Kubelet) restConfig(path string, text []byte) (*rest.Config, error) {
	kubeconfig, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	if kubeconfig.CurrentContext == "" {
		return nil, errors.New("it has no current-context")
	}
	if err := k.resolve(path, kubeconfig); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // A drain sends one request for each pod, all at once.
	config.UserAgent = cmp.Or(k.opts.UserAgent, "nth")
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{} // They are for people who write manifests.
	config.Dial = (&net.Dialer{Timeout: dialPatience, KeepAlive: 30 * time.Second}).DialContext
	if config.ExecProvider != nil {
		config.ExecProvider.StdinUnavailable = true // A daemon has nobody to ask.
	}
	return config, nil
}

// resolve makes the paths in a kubeconfig ones that can be opened here: relative ones begin at the kubeconfig, absolute
// ones at the host's root.
func (k *Kubelet) resolve(path string, kubeconfig *api.Config) error {
	for _, cluster := range kubeconfig.Clusters {
		cluster.LocationOfOrigin = path
		cluster.CertificateAuthority = k.onHost(cluster.CertificateAuthority)
	}
	for _, user := range kubeconfig.AuthInfos {
		user.LocationOfOrigin = path
		user.ClientCertificate = k.onHost(user.ClientCertificate)
		user.ClientKey = k.onHost(user.ClientKey)
		user.TokenFile = k.onHost(user.TokenFile)
	}
	return clientcmd.ResolveLocalPaths(kubeconfig)
}

// credential says what proves the identity.
func credential(config *rest.Config) string {
	switch {
	case config.ExecProvider != nil:
		return "the exec plugin " + filepath.Base(config.ExecProvider.Command)
	case config.BearerTokenFile != "":
		return "the token file " + config.BearerTokenFile
	case config.BearerToken != "":
		return "a token in the kubeconfig"
	case config.CertFile != "":
		return "the client certificate " + config.CertFile
	case len(config.CertData) > 0:
		return "a client certificate in the kubeconfig"
	}
	return "nothing"
}

// flat is an error whose text is one line, whatever it wraps.
type flat struct{ error }

func (e flat) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e flat) Unwrap() error { return e.error }

// oneLine makes the text of errors from client-go, some of which bring help for people at a terminal, one line.
func oneLine(err error) error { return flat{err} }
