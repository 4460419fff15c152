package kubelet

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/apiserver"
)

// load makes a client from the kubeconfig at path with that text. No request is made.
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
		if len(bytes.TrimSpace(config.CAData)) == 0 { // For client-go, that is no authority, or any.
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
		options.Proxy = proxy.choose()
	}
	client, err := apiserver.New(config, options)
	if err != nil {
		return loaded{}, unlessMissing(fmt.Errorf("using the kubeconfig %s: %w", path, err))
	}
	client.Source = path
	return loaded{Client: client, proxy: proxy, authority: authority, trusted: config.CAData}, nil
}

// launch lets an exec plugin be run by Options.Launcher, if there is one.
func (k *Kubelet) launch(plugin *api.ExecConfig) {
	if len(k.opts.Launcher) > 0 {
		plugin.Args = slices.Concat(k.opts.Launcher[1:], []string{k.belowRoot(plugin.Command)}, plugin.Args)
		plugin.Command = k.opts.Launcher[0]
	}
}

// belowRoot is a command as it is called where Root is the root: client-go has made a path that begins at the kubeconfig
// one that begins at our own root.
func (k *Kubelet) belowRoot(command string) string {
	if below, err := filepath.Rel(k.opts.Root, command); err == nil && filepath.IsLocal(below) {
		return filepath.Join("/", below)
	}
	return command
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
	if err := apiserver.CheckProxy(kubeconfig); err != nil {
		return nil, err
	}
	if err := k.resolve(path, kubeconfig); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*kubeconfig, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// resolve makes the paths in a kubeconfig ones that can be opened here: relative ones begin at the kubeconfig, absolute
// ones at the host's root.
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
