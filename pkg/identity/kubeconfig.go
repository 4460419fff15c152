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
	"regexp"
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
}

var (
	errProxy = errors.New("the cluster's proxy-url is no address of a proxy: it must begin with http://, https:// or socks5://, " +
		"and have each of %, /, ? and # in the password escaped, such as % as %25")
	errServer     = errors.New("the cluster's server is no address of an API server, such as https://10.0.0.1:6443")
	errContext    = errors.New("its current-context names no context with a user and a cluster that has a server")
	errPair       = errors.New("the user's client certificate and key are no pair in PEM")
	errUser       = errors.New("the user has no credential that is complete, or several")
	errKubeconfig = errors.New(`it is no kubeconfig; "kubectl config view --kubeconfig" says why`)
)

// where finds the line or the key in an error of client-go about a kubeconfig.
var where = regexp.MustCompile(`line \d+|Go struct field [\w.-]+`)

// parse reads the text of the kubeconfig at path, of which root is the root directory; "" is this process's. No error quotes a value of
// it, as client-go's own do: some of a user's key, token and password.
func parse(document []byte, path, root string) (kubeconfig, error) {
	whole, err := clientcmd.Load(document)
	if err != nil {
		if found := where.FindString(err.Error()); found != "" {
			return kubeconfig{}, fmt.Errorf("%w (%s)", errKubeconfig, strings.TrimPrefix(found, "Go struct field "))
		}
		return kubeconfig{}, errKubeconfig
	}
	current := whole.Contexts[whole.CurrentContext]
	if current == nil {
		return kubeconfig{}, errContext
	}
	k := kubeconfig{whole.Clusters[current.Cluster], whole.AuthInfos[current.AuthInfo]}
	if k.cluster == nil || k.user == nil || k.cluster.Server == "" {
		return kubeconfig{}, errContext
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
		case *file.path == "":
		case !filepath.IsAbs(*file.path):
			*file.path = filepath.Join(dir, *file.path)
		default:
			*file.path = filepath.Join(root, *file.path)
		}
	}
	if exec := k.user.Exec; exec != nil && strings.Contains(exec.Command, "/") && !filepath.IsAbs(exec.Command) {
		if root != "" {
			dir = strings.TrimPrefix(dir, filepath.Join("/", root))
		}
		exec.Command = filepath.Join("/", dir, exec.Command)
	}
}

// file is a file that is named, and its content; what the kubeconfig has itself is used in its place.
type file struct {
	path    *string
	content *[]byte
}

// files lists the files that a kubeconfig may name, each with the field that its content goes into. That of a token has none: see load.
func (k kubeconfig) files() []file {
	var token []byte
	return []file{
		{&k.cluster.CertificateAuthority, &k.cluster.CertificateAuthorityData},
		{&k.user.ClientCertificate, &k.user.ClientCertificateData},
		{&k.user.ClientKey, &k.user.ClientKeyData},
		{&k.user.TokenFile, &token},
	}
}

// load reads the files that are named, so that the kubeconfig has their content instead, and returns a digest of all that. The error is an
// ErrNotYet for a file that is missing or an authority that is empty: the kubelet writes its first certificate when the cluster has signed
// it.
func (k kubeconfig) load() (digest [sha256.Size]byte, err error) {
	sum := sha256.New()
	for _, file := range k.files() {
		if *file.path == "" {
			continue
		}
		content, err := readFile(*file.path)
		if err != nil {
			return digest, unlessMissing(err)
		}
		fmt.Fprintf(sum, "%q", content)
		if file.path == &k.cluster.CertificateAuthority && len(bytes.TrimSpace(content)) == 0 { // client-go would trust the system's.
			return digest, fmt.Errorf("%w: the certificate authority %s is empty", ErrNotYet, *file.path)
		}
		if file.path == &k.user.TokenFile {
			k.user.Token = strings.TrimSpace(string(content))
		}
		if len(*file.content) == 0 {
			*file.content = content
		}
		*file.path = ""
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
func (k kubeconfig) config() (*rest.Config, error) {
	used := api.NewConfig()
	used.Clusters["used"], used.AuthInfos["used"] = k.cluster, k.user
	used.Contexts["used"], used.CurrentContext = &api.Context{Cluster: "used", AuthInfo: "used"}, "used"
	config, err := clientcmd.NewDefaultClientConfig(*used, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errUser
	}
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return nil, errServer
	}
	if len(config.CAData) > 0 && !x509.NewCertPool().AppendCertsFromPEM(config.CAData) {
		return nil, errors.New("the cluster's certificate authority has no certificate in PEM")
	}
	if len(config.CertData) > 0 {
		if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
			return nil, errPair
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
	config, err := k.config()
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
