package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/text"
)

// kubeconfig has the cluster and the user that the current context of a kubeconfig, whole, names. This process can open the paths in them: see
// resolve.
type kubeconfig struct {
	whole   *api.Config
	cluster *api.Cluster
	user    *api.AuthInfo
}

var (
	errProxy = errors.New("the cluster's proxy-url is no address of a proxy: it must begin with http://, https:// or socks5://, " +
		"and have each of %, /, ? and # in the password escaped, such as % as %25")
	errServer  = errors.New("the cluster's server is no address of an API server, such as https://10.0.0.1:6443")
	errContext = errors.New("its current-context names no context with a user and a cluster that has a server")
	errUser    = errors.New("its certificate authority or its user's credential is incomplete or unreadable; " +
		"the user needs one of a token, a client certificate with its key, and an exec plugin")
	errKubeconfig = errors.New(`it is no kubeconfig; "kubectl config view --kubeconfig" says why`)
)

// parse reads the text of a kubeconfig. path is the file's path, and root the host's root directory; "" means this process's root.
//
// No error quotes a value of the kubeconfig. Errors of client-go may, even parts of a key, a token or a password, so parse drops them.
func parse(document []byte, path, root string) (kubeconfig, error) {
	whole, err := clientcmd.Load(document)
	if err != nil {
		return kubeconfig{}, errKubeconfig
	}
	current := whole.Contexts[whole.CurrentContext]
	if current == nil {
		return kubeconfig{}, errContext
	}
	k := kubeconfig{whole, whole.Clusters[current.Cluster], whole.AuthInfos[current.AuthInfo]}
	if k.cluster == nil || k.user == nil || k.cluster.Server == "" {
		return kubeconfig{}, errContext
	}
	if proxy := k.cluster.ProxyURL; proxy != "" {
		parsed, err := url.Parse(proxy)
		valid := err == nil && slices.Contains([]string{"http", "https", "socks5"}, parsed.Scheme)
		if !valid || text.HasUserInHost(parsed) {
			return kubeconfig{}, errProxy
		}
	}
	k.resolve(path, root)
	return k, nil
}

// resolve turns the paths of files in a kubeconfig into paths that this process can open. Relative paths start at the kubeconfig's directory,
// absolute ones at root.
//
// It also turns a relative path of the exec plugin into an absolute one. The plugin runs with root as its root directory, so its path does not
// begin with root.
func (k kubeconfig) resolve(path, root string) {
	dir := filepath.Dir(path)
	for _, file := range k.files() {
		switch {
		case *file == "": // The kubeconfig does not have this field.
		case !filepath.IsAbs(*file):
			*file = filepath.Join(dir, *file)
		default:
			*file = filepath.Join(root, *file)
		}
	}
	exec := k.user.Exec
	isRelative := exec != nil && strings.Contains(exec.Command, "/") && !filepath.IsAbs(exec.Command) // Without a slash, it is found in $PATH.
	if isRelative {
		dir = strings.TrimPrefix(dir, filepath.Join("/", root)) // The plugin sees the kubeconfig's directory without root in front.
		exec.Command = filepath.Join("/", dir, exec.Command)
	}
}

// files lists the fields of a kubeconfig that name files.
func (k kubeconfig) files() []*string {
	return []*string{&k.cluster.CertificateAuthority, &k.user.ClientCertificate, &k.user.ClientKey, &k.user.TokenFile}
}

// version identifies the contents of the files that the kubeconfig names, by their times and sizes. If a file is missing or empty, the error is an
// ErrNotYet: the kubelet writes its first certificate once the cluster has signed that.
func (k kubeconfig) version() (version string, err error) {
	for _, path := range k.files() {
		if *path == "" { // The kubeconfig does not have this field.
			continue
		}
		found, err := os.Stat(*path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("%w: %w", err, ErrNotYet)
		case err != nil:
			return "", err
		case !found.Mode().IsRegular(): // The read of a named pipe may never end.
			return "", fmt.Errorf("%s: not a regular file", *path)
		case found.Size() == 0: // client-go takes an empty certificate authority for the system's.
			return "", fmt.Errorf("%s is empty: %w", *path, ErrNotYet)
		}
		version += fmt.Sprintf("%q %d %d ", *path, found.ModTime().UnixNano(), found.Size())
	}
	return version, nil
}

// static describes in words the token or client certificate that the kubeconfig contains or names as a file; "" if it has neither. Such a credential
// takes precedence over an exec plugin.
func (k kubeconfig) static() string {
	switch u := k.user; {
	case u.TokenFile != "":
		return "the token file " + u.TokenFile
	case u.Token != "":
		return "a token in the kubeconfig"
	case len(u.ClientCertificateData) > 0:
		return "a client certificate in the kubeconfig"
	case u.ClientCertificate != "":
		return "the client certificate " + u.ClientCertificate
	}
	return ""
}

// client makes a client for the kubeconfig's cluster and user. path is where the kubeconfig was found. No error quotes a value of the kubeconfig.
func (k kubeconfig) client(path string, opts ClientOptions) (*Client, error) {
	config, err := clientcmd.NewDefaultClientConfig(*k.whole, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("making a Kubernetes client from %s: %w", path, errUser) // err may quote values.
	}
	return newClient(config, path, k.static(), opts)
}
