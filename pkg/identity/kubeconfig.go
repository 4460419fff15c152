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

// kubeconfig is the cluster and the user that the current context of a kubeconfig names. This process can open their paths (see resolve).
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

// parse reads the text of a kubeconfig. path is where the kubeconfig is, and root the host's root directory ("" means this process's). No error
// quotes a value of the kubeconfig. Errors of client-go do, even parts of a key, a token or a password.
func parse(document []byte, path, root string) (kubeconfig, error) {
	whole, err := clientcmd.Load(document)
	if err != nil {
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

// resolve turns the paths in a kubeconfig into ones that this process can open. Relative ones start at the kubeconfig's directory, absolute ones
// at root. The path of the exec plugin is the exception: it starts at root, because the plugin runs with that as its root directory.
func (k kubeconfig) resolve(path, root string) {
	dir := filepath.Dir(path)
	for _, file := range k.files() {
		switch {
		case *file.path == "": // The kubeconfig names no such file.
		case !filepath.IsAbs(*file.path):
			*file.path = filepath.Join(dir, *file.path)
		default:
			*file.path = filepath.Join(root, *file.path)
		}
	}
	if exec := k.user.Exec; exec != nil && strings.Contains(exec.Command, "/") && !filepath.IsAbs(exec.Command) {
		if root != "" { // The plugin sees the kubeconfig's directory without root in front.
			dir = strings.TrimPrefix(dir, filepath.Join("/", root))
		}
		exec.Command = filepath.Join("/", dir, exec.Command)
	}
}

// file is a field of a kubeconfig that names a file, and the field for the file's content. If both are set, content wins.
type file struct {
	path    *string
	content *[]byte
}

// files lists the files that a kubeconfig may name. The token's file has no field for bytes: load puts its content into user.Token.
func (k kubeconfig) files() []file {
	var token []byte
	return []file{
		{&k.cluster.CertificateAuthority, &k.cluster.CertificateAuthorityData},
		{&k.user.ClientCertificate, &k.user.ClientCertificateData},
		{&k.user.ClientKey, &k.user.ClientKeyData},
		{&k.user.TokenFile, &token},
	}
}

// load replaces the names of files in the kubeconfig by the files' contents, and returns a digest of those contents. The error is an ErrNotYet
// if a file is missing or the certificate authority is empty. Then it is worth waiting: the kubelet writes its first certificate when the
// cluster has signed that.
func (k kubeconfig) load() (digest [sha256.Size]byte, err error) {
	sum := sha256.New()
	for _, file := range k.files() {
		if *file.path == "" {
			continue
		}
		content, err := readFile(*file.path)
		if err != nil {
			return digest, missingIsNotYet(err)
		}
		fmt.Fprintf(sum, "%q", content)
		if file.path == &k.cluster.CertificateAuthority && len(bytes.TrimSpace(content)) == 0 { // client-go would trust the system's.
			return digest, fmt.Errorf("%w: the certificate authority %s is empty", ErrNotYet, *file.path)
		}
		if file.path == &k.user.TokenFile {
			k.user.Token = strings.TrimSpace(string(content))
		}
		if len(*file.content) == 0 { // If the kubeconfig has the content itself, that takes precedence, as in client-go.
			*file.content = content
		}
		*file.path = "" // client-go must not read the file again.
	}
	sum.Sum(digest[:0])
	return digest, nil
}

// static describes the token or client certificate in the kubeconfig, or in a file that the kubeconfig names; "" if it has neither. Such a
// credential takes precedence over an exec plugin.
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

// config returns the configuration of a client for the kubeconfig's cluster and user. No error quotes a value of the kubeconfig.
func (k kubeconfig) config() (*rest.Config, error) {
	used := api.NewConfig()
	used.Clusters["used"], used.AuthInfos["used"] = k.cluster, k.user
	used.Contexts["used"], used.CurrentContext = &api.Context{Cluster: "used", AuthInfo: "used"}, "used"
	config, err := clientcmd.NewDefaultClientConfig(*used, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errUser // err could quote values.
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

// readKubeconfig returns the configuration in a kubeconfig file, and describes the token or client certificate in it ("" if it has neither). It
// does not read the files that the kubeconfig names: client-go reads them later, and again when they change.
func readKubeconfig(path string) (config *rest.Config, static string, err error) {
	document, err := readFile(path)
	if err != nil {
		return nil, "", err
	}
	k, err := parse(document, path, "")
	if err != nil {
		return nil, "", err
	}
	config, err = k.config()
	return config, k.static(), err
}

// readFile reads a whole file of fileLimit at most. A path whose read could block for ever, such as that of a named pipe, is an error.
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
	defer func() { _ = file.Close() }() // It was only read.
	content, err := io.ReadAll(io.LimitReader(file, fileLimit+1))
	if len(content) > fileLimit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, fileLimit)
	}
	return content, err
}

// missingIsNotYet makes an fs.ErrNotExist an ErrNotYet, and returns any other error as it is.
func missingIsNotYet(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotYet, err)
	}
	return err
}
