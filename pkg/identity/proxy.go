package identity

import (
	"cmp"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/nth-project/nth/pkg/text"
)

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

// ProxyOf returns the proxy that an environment configures. environment is a list of "NAME=value" in which later values override earlier ones;
// from describes it, for messages.
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

// Or returns p if it has a proxy, and other if only that has one. In the latter case, the exceptions in p's NO_PROXY apply, too.
func (p Proxy) Or(other Proxy) Proxy {
	if !p.set() && other.set() {
		other.None = strings.Trim(other.None+","+p.None, ",")
		return other
	}
	return p
}

// set reports whether there is a proxy for any server.
func (p Proxy) set() bool { return p.HTTPS != "" || p.HTTP != "" }

// PassedOver returns the names of the variables that have no effect, because their value is not the address of a proxy. net/http does not report
// them, so nth does.
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

// String describes the proxy for https and the exceptions to it, without user and password.
func (p Proxy) String() string {
	everywhere := p
	everywhere.None = ""
	text := cmp.Or(everywhere.For("https://"+anywhere), "none") + " for https"
	if p.None != "" {
		text += ", and none for " + p.None
	}
	return text
}

// For returns the address of the proxy for a server's URL, for messages: without user and password; "" if the server is reached directly.
func (p Proxy) For(server string) string {
	address, err := url.Parse(server)
	if err != nil {
		return ""
	}
	found, err := p.find(address)
	if err != nil || found == nil {
		return ""
	}
	if found.Host == "" { // net/http would use this value, and fail. For hides it: in "user:password@host", the user would be taken for the scheme.
		return "what is no address of one"
	}
	return (&url.URL{Scheme: found.Scheme, Host: found.Host}).String()
}

// find returns the proxy for a server's URL by the rules of net/http; nil if the server is reached directly. It also returns nil if net/http would
// take a part of the proxy's password for the host (see text.HidesUser): that part would be shown, and looked up in the DNS.
func (p Proxy) find(server *url.URL) (*url.URL, error) {
	rules := httpproxy.Config{HTTPProxy: p.HTTP, HTTPSProxy: p.HTTPS, NoProxy: p.None}
	found, err := rules.ProxyFunc()(server)
	if found != nil && text.HidesUser(found) {
		return nil, nil
	}
	return found, err
}

// environment returns the variables, as "NAME=value", that make an exec plugin use the proxy; nil if there is none. The plugin still reaches the
// metadata service directly.
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
			variables = append(variables, name+"="+value, strings.ToLower(name)+"="+value) // Some programs read only one of them.
		}
	}
	return variables
}
