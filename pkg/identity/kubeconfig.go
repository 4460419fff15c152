package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/text"
)

// fileLimit is the most that is read of a kubeconfig, and of each file that it names, in bytes. A bundle of authorities has 250 kB.
const fileLimit = 4 << 20

// kubeconfig is the part of a kubeconfig that its current context names. Paths are such that this process can open them.
type kubeconfig struct {
	cluster *api.Cluster
	user    *api.AuthInfo
	// credential describes the credential in it, before load.
	credential string
}

// parse reads the text of the kubeconfig at path, of which root is the root directory; "" is this process's. No error quotes the text.
func parse(document []byte, path, root string) (kubeconfig, error) {
	whole, err := clientcmd.Load(document)
	if err != nil {
		return kubeconfig{}, explain(document)
	}
	var k kubeconfig
	if current := whole.Contexts[whole.CurrentContext]; whole.CurrentContext != "" && current != nil {
		k.cluster, k.user = whole.Clusters[current.Cluster], whole.AuthInfos[current.AuthInfo]
	}
	if k.cluster == nil || k.user == nil || k.cluster.Server == "" {
		return kubeconfig{}, explain(document)
	}
	if proxy := k.cluster.ProxyURL; proxy != "" {
		if found, err := url.Parse(proxy); err != nil || text.HidesUser(found) || !slices.Contains([]string{"http", "https", "socks5"}, found.Scheme) {
			return kubeconfig{}, errProxy
		}
	}
	k.resolve(path, root)
	return k, nil
}

// resolve turns paths into ones that this process can open: relative ones start at the kubeconfig, absolute ones at the root directory. That
// of the exec plugin is as seen from the root directory.
func (k kubeconfig) resolve(path, root string) {
	dir := filepath.Dir(path)
	for _, file := range k.files() {
		switch {
		case *file == "":
		case !filepath.IsAbs(*file):
			*file = filepath.Join(dir, *file)
		default:
			*file = filepath.Join(root, *file)
		}
	}
	if k.user.Exec != nil && strings.Contains(k.user.Exec.Command, "/") && !filepath.IsAbs(k.user.Exec.Command) {
		below, err := filepath.Rel(filepath.Join("/", root), dir)
		if err != nil || root == "" {
			below = dir
		}
		k.user.Exec.Command = filepath.Join("/", below, k.user.Exec.Command)
	}
}

var (
	errProxy = errors.New("the cluster's proxy-url is no address of a proxy: it must begin with http://, https:// or socks5://, " +
		"and have each of %, /, ? and # in the password escaped, such as % as %25")
	errServer = errors.New("the cluster's server is no address of an API server, such as https://10.0.0.1:6443")
)

// files returns the paths that are named.
func (k kubeconfig) files() []*string {
	return []*string{&k.cluster.CertificateAuthority, &k.user.ClientCertificate, &k.user.ClientKey, &k.user.TokenFile}
}

// load reads the files that are named, so that the kubeconfig has their content instead, and returns a digest of all that. The error is an
// ErrNotYet for a file that is missing or an authority that is empty: the kubelet writes its first certificate when the cluster has signed
// it.
func (k kubeconfig) load() (digest [sha256.Size]byte, err error) {
	sum := sha256.New()
	for _, file := range k.files() {
		if *file == "" {
			continue
		}
		content, err := readFile(*file)
		if err != nil {
			return digest, unlessMissing(err)
		}
		fmt.Fprintf(sum, "%q", content)
		switch file {
		case &k.cluster.CertificateAuthority:
			if len(bytes.TrimSpace(content)) == 0 { // client-go would trust the system's authorities instead.
				return digest, fmt.Errorf("%w: the certificate authority %s is empty", ErrNotYet, *file)
			}
			if len(k.cluster.CertificateAuthorityData) == 0 {
				k.cluster.CertificateAuthorityData = content
			}
		case &k.user.ClientCertificate:
			if len(k.user.ClientCertificateData) == 0 {
				k.user.ClientCertificateData = content
			}
		case &k.user.ClientKey:
			if len(k.user.ClientKeyData) == 0 {
				k.user.ClientKeyData = content
			}
		case &k.user.TokenFile:
			k.user.Token = strings.TrimSpace(string(content))
		}
		*file = ""
	}
	sum.Sum(digest[:0])
	return digest, nil
}

// static describes the credential in the kubeconfig or in a file that it names; "" if there is none. It takes precedence over a plugin.
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

// config returns the configuration of a client. No error quotes a value of the kubeconfig.
func (k kubeconfig) config(document []byte) (*rest.Config, error) {
	used := api.NewConfig()
	used.Clusters["used"], used.AuthInfos["used"] = k.cluster, k.user
	used.Contexts["used"], used.CurrentContext = &api.Context{Cluster: "used", AuthInfo: "used"}, "used"
	config, err := clientcmd.NewDefaultClientConfig(*used, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, explain(document)
	}
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return nil, errServer
	}
	if len(config.CAData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(config.CAData) {
		return nil, errors.New("the cluster's certificate authority has no certificate in PEM")
	}
	if len(config.CertData) > 0 {
		if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
			return nil, errors.New("the user's client certificate and key are no pair in PEM")
		}
	}
	return config, nil
}

// readKubeconfig returns the configuration in a kubeconfig file. The files that it names are left to be read later, and again.
func readKubeconfig(path string) (*rest.Config, string, error) {
	document, err := readFile(path)
	if err != nil {
		return nil, "", err
	}
	k, err := parse(document, path, "")
	if err != nil {
		return nil, "", err
	}
	config, err := k.config(document)
	return config, k.static(), err
}

// readFile reads a whole file. A path whose read could block for ever, such as that of a named pipe, is an error.
func readFile(path string) ([]byte, error) {
	found, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if found.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0 {
		return nil, fmt.Errorf("%s is no file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, fileLimit+1))
	if len(content) > fileLimit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, fileLimit)
	}
	return content, err
}

// unlessMissing makes an fs.ErrNotExist an ErrNotYet.
func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotYet, err)
	}
	return err
}
