package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// proxyEvery is how often the proxy is asked for. It is the kubelet's, and changes when its unit does.
const proxyEvery = 10 * time.Second

// metadataAddresses are never reached through a proxy, which would be another machine's metadata service.
var metadataAddresses = []string{"169.254.169.254", "fd00:ec2::254"}

// Proxy is the proxy that an environment names, in the variables that Go's programs heed, the kubelet among them. The zero
// value is none. It may hold a password; what For returns does not.
type Proxy struct {
	// HTTPS is the address for https, HTTP for http, and None what is reached without: HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
	HTTPS, HTTP, None string
	// From says in a few words whose environment it is.
	From string
}

// OfTheKubeconfig stands for the proxy that the kubeconfig itself names, which goes before any other.
var OfTheKubeconfig = Proxy{From: "the kubeconfig"}

// ProxyOf takes the proxy from an environment, a list of "NAME=value" of which a later one goes before an earlier one.
func ProxyOf(environment []string, from string) Proxy {
	value := func(name string) string {
		found := map[string]string{}
		for _, variable := range environment {
			if n, v, ok := strings.Cut(variable, "="); ok {
				found[n] = v
			}
		}
		if v := found[name]; v != "" {
			return v
		}
		return found[strings.ToLower(name)]
	}
	return Proxy{HTTPS: value("HTTPS_PROXY"), HTTP: value("HTTP_PROXY"), None: value("NO_PROXY"), From: from}
}

// Or is the proxy, if it is one, or else another; what either reaches without is reached without.
func (p Proxy) Or(other Proxy) Proxy {
	if !p.set() && other.set() {
		other.None = strings.Trim(other.None+","+p.None, ",")
		return other
	}
	return p
}

func (p Proxy) set() bool { return p.HTTPS != "" || p.HTTP != "" }

// String tells of the proxy without its password.
func (p Proxy) String() string {
	everywhere := p
	everywhere.None = ""
	https, err := everywhere.For("https://apiserver.invalid")
	if err != nil {
		return "what is no address of one"
	}
	text := cmp.Or(https, "none") + " for https"
	if p.None != "" {
		text += ", and none for " + p.None
	}
	return text
}

// For returns the proxy for a server, without its password; "" if there is none.
func (p Proxy) For(server string) (string, error) {
	address, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("the proxy for %s: %w", server, err)
	}
	found, err := p.find(address)
	if err != nil || found == nil {
		return "", err
	}
	return found.Redacted(), nil
}

// find applies the rules of the variables. Its error has no address: there may be a password in it.
func (p Proxy) find(server *url.URL) (*url.URL, error) {
	for _, address := range []string{p.HTTPS, p.HTTP} {
		if _, err := url.Parse(address); err != nil && strings.Contains(address, "://") {
			return nil, fmt.Errorf("what %s has for a proxy is no address of one", p.From)
		}
	}
	rules := httpproxy.Config{HTTPProxy: p.HTTP, HTTPSProxy: p.HTTPS, NoProxy: p.None}
	found, err := rules.ProxyFunc()(server)
	if err != nil {
		return nil, fmt.Errorf("what %s has for a proxy is no address of one", p.From)
	}
	return found, nil
}

// choose returns the function that client-go asks for each connection.
func (p Proxy) choose() func(*http.Request) (*url.URL, error) {
	return func(request *http.Request) (*url.URL, error) { return p.find(request.URL) }
}

// environment is that of a program which is to use the proxy.
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

// findProxy asks for the proxy, now and then.
func (k *Kubelet) findProxy(ctx context.Context) {
	if k.opts.Proxy == nil || !k.proxied.IsZero() && time.Since(k.proxied) < proxyEvery {
		return
	}
	k.proxied = time.Now()
	if found, err := k.opts.Proxy(ctx); err == nil {
		k.proxy = found
	}
}
