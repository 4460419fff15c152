package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/apiserver"
)

// load makes a client from the text of the kubeconfig at path. It makes no request.
func (k *Kubelet) load(path string, text []byte) (loaded, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return loaded{}, fmt.Errorf("%w: the kubeconfig %s is empty", ErrNotYet, path)
	}
	config, err := k.restConfig(path, text)
	if err != nil {
		return loaded{}, unlessMissing(fmt.Errorf("reading the kubeconfig %s: %w", path, apiserver.OneLine(err)))
	}
	authority := config.CAFile
	if authority != "" {
		if config.CAData, err = os.ReadFile(authority); err != nil {
			return loaded{}, unlessMissing(fmt.Errorf("using the kubeconfig %s: %w", path, err))
		}
		if len(bytes.TrimSpace(config.CAData)) == 0 { // client-go would trust the system's authorities instead
			return loaded{}, fmt.Errorf("%w: the certificate authority %s is empty", ErrNotYet, authority)
		}
		config.CAFile = ""
	}
	options := apiserver.Options{
		UserAgent: cmp.Or(k.opts.UserAgent, "nth"), Requested: k.opts.Requested,
		Token: k.opts.Token, Fallback: k.opts.Fallback, Launch: k.launch, Environment: k.proxy.environment(),
	}
	proxy := k.proxy
	if config.Proxy != nil {
		proxy = OfTheKubeconfig
	} else if proxy.set() {
		options.Proxy = func(request *http.Request) (*url.URL, error) { return proxy.find(request.URL) }
	}
	client, err := apiserver.New(config, options)
	if err != nil {
		return loaded{}, unlessMissing(fmt.Errorf("using the kubeconfig %s: %w", path, err))
	}
	client.Source = path
	return loaded{Client: client, proxy: proxy, authority: authority, trusted: config.CAData}, nil
}

// launch makes Options.Launcher run an exec plugin, if it is set.
func (k *Kubelet) launch(plugin *api.ExecConfig) {
	if len(k.opts.Launcher) > 0 {
		plugin.Args = slices.Concat(k.opts.Launcher[1:], []string{k.belowRoot(plugin.Command)}, plugin.Args)
		plugin.Command = k.opts.Launcher[0]
	}
}

// belowRoot returns a command's path as it is seen from within Root. client-go has made a path that is relative to the
// kubeconfig one that is relative to this process's root.
func (k *Kubelet) belowRoot(command string) string {
	if below, err := filepath.Rel(k.opts.Root, command); err == nil && filepath.IsLocal(below) {
		return filepath.Join("/", below)
	}
	return command
}

// unlessMissing makes an fs.ErrNotExist an ErrNotYet. A file that the kubeconfig names may not exist yet: the kubelet writes
// its first certificate when the cluster has signed it.
func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotYet, err)
	}
	return err
}

// restConfig turns a kubeconfig into a client's configuration.
func (k *Kubelet) restConfig(path string, text []byte) (*rest.Config, error) {
	kubeconfig, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	if kubeconfig.CurrentContext == "" {
		return nil, errors.New("it has no current-context")
	}
	if err := apiserver.CheckProxy(kubeconfig); err != nil {
		return nil, err
	}
	if err := k.resolve(path, kubeconfig); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*kubeconfig, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// resolve turns the paths in a kubeconfig into ones that this process can open: relative ones start at the kubeconfig,
// absolute ones at the host's root.
func (k *Kubelet) resolve(path string, kubeconfig *api.Config) error {
	var named []*string
	for _, cluster := range kubeconfig.Clusters {
		cluster.LocationOfOrigin = path
		named = append(named, &cluster.CertificateAuthority)
	}
	for _, user := range kubeconfig.AuthInfos {
		user.LocationOfOrigin = path
		named = append(named, &user.ClientCertificate, &user.ClientKey, &user.TokenFile)
	}
	for _, file := range named {
		*file = k.onHost(*file)
	}
	if err := clientcmd.ResolveLocalPaths(kubeconfig); err != nil {
		return err
	}
	for _, file := range named {
		if err := notAFile(*file); err != nil {
			return err
		}
	}
	return nil
}

// proxyInterval is how often Options.Proxy is called. The proxy is the kubelet's, and changes with its unit.
const proxyInterval = 10 * time.Second

// metadataAddresses are never reached through a proxy, which would return another machine's metadata.
var metadataAddresses = []string{"169.254.169.254", "fd00:ec2::254"}

// Proxy is the proxy that an environment configures, in the variables that net/http and so the kubelet use. The zero value
// is no proxy. The addresses may contain a user and a password, which its methods do not show.
type Proxy struct {
	// HTTPS, HTTP and None are the values of HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
	HTTPS, HTTP, None string
	// From says in a few words whose environment it is.
	From string
}

// OfTheKubeconfig stands for the proxy in the kubeconfig, which takes precedence over any other.
var OfTheKubeconfig = Proxy{From: "the kubeconfig"}

// ProxyOf takes the proxy from an environment, a list of "NAME=value" in which later values override earlier ones.
func ProxyOf(environment []string, from string) Proxy {
	set := map[string]string{}
	for _, variable := range environment {
		if name, value, ok := strings.Cut(variable, "="); ok {
			set[name] = value
		}
	}
	value := func(name string) string { return cmp.Or(set[name], set[strings.ToLower(name)]) }
	return Proxy{HTTPS: value("HTTPS_PROXY"), HTTP: value("HTTP_PROXY"), None: value("NO_PROXY"), From: from}
}

// Or returns the proxy if it is set, and other if not. In that case, the exceptions of both apply.
func (p Proxy) Or(other Proxy) Proxy {
	if !p.set() && other.set() {
		other.None = strings.Trim(other.None+","+p.None, ",")
		return other
	}
	return p
}

func (p Proxy) set() bool { return p.HTTPS != "" || p.HTTP != "" }

// PassedOver returns the names of the variables whose value is not the address of a proxy. net/http ignores them silently.
func (p Proxy) PassedOver() []string {
	var names []string
	for _, variable := range []struct{ name, value, scheme string }{{"HTTPS_PROXY", p.HTTPS, "https"}, {"HTTP_PROXY", p.HTTP, "http"}} {
		alone := Proxy{HTTPS: variable.value, HTTP: variable.value}
		if found, err := alone.find(&url.URL{Scheme: variable.scheme, Host: anywhere}); variable.value != "" && (err != nil || found == nil) {
			names = append(names, variable.name)
		}
	}
	return names
}

// anywhere is a host name to which no exception applies.
const anywhere = "apiserver.invalid"

// String describes the proxy, without user and password.
func (p Proxy) String() string {
	everywhere := p
	everywhere.None = ""
	text := cmp.Or(everywhere.For("https://"+anywhere), "none") + " for https"
	if p.None != "" {
		text += ", and none for " + p.None
	}
	return text
}

// For returns the proxy for a server's URL, without user and password; "" if there is none.
func (p Proxy) For(server string) string {
	address, err := url.Parse(server)
	if err != nil {
		return ""
	}
	found, err := p.find(address)
	if err != nil || found == nil {
		return ""
	}
	if found.Host == "" { // net/http would use it, and fail. Its scheme may be the user of "user:password@host".
		return "what is no address of one"
	}
	return (&url.URL{Scheme: found.Scheme, Host: found.Host}).String()
}

// find applies the rules of net/http.
func (p Proxy) find(server *url.URL) (*url.URL, error) {
	rules := httpproxy.Config{HTTPProxy: p.HTTP, HTTPSProxy: p.HTTPS, NoProxy: p.None}
	return rules.ProxyFunc()(server)
}

// environment returns the variables that make another program use the proxy.
func (p Proxy) environment() []string {
	if !p.set() {
		return nil
	}
	none := strings.Join(metadataAddresses, ",")
	if p.None != "" {
		none = p.None + "," + none
	}
	var variables []string
	for name, value := range map[string]string{"HTTPS_PROXY": p.HTTPS, "HTTP_PROXY": p.HTTP, "NO_PROXY": none} {
		if value != "" {
			variables = append(variables, name+"="+value, strings.ToLower(name)+"="+value)
		}
	}
	return variables
}

// findProxy calls Options.Proxy, if the last call was long enough ago.
func (k *Kubelet) findProxy(ctx context.Context) {
	if k.opts.Proxy == nil || time.Since(k.proxyFound) < proxyInterval {
		return
	}
	k.proxyFound = time.Now()
	if found, err := k.opts.Proxy(ctx); err == nil {
		k.proxy = found
	}
}
