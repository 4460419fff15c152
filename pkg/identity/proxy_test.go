package identity_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nth-project/nth/pkg/identity"
)

// A proxy is the only way to the API server: its name is known to nobody else.
type proxy struct {
	*httptest.Server
	to string

	mu    sync.Mutex
	asked []string // for whom, and by whom
}

// proxied is the name of the API server that httptest's certificate is for.
const proxied = "https://example.com"

func startProxy(t *testing.T, server *apiServer) *proxy {
	t.Helper()
	p := &proxy{to: strings.TrimPrefix(server.URL, "https://")}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	t.Cleanup(p.CloseClientConnections)
	return p
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host+" "+string(user))
	p.mu.Unlock()
	server, err := net.Dial("tcp", p.to)
	if err != nil || r.Method != http.MethodConnect {
		http.Error(w, "no way", http.StatusBadGateway)
		return
	}
	defer server.Close()
	here, said, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	if _, err := io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, said)
		_ = server.Close() // the one who asked is gone
	}()
	_, _ = io.Copy(here, server)
}

func (p *proxy) heard() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.asked, "\n")
}

// through returns the kubelet of a kubeconfig that names the API server as only the proxy knows it.
func through(t *testing.T, server *apiServer, user string, find func(context.Context) (identity.Proxy, error)) *identity.Kubelet {
	t.Helper()
	text := strings.ReplaceAll(server.kubeconfig(user), server.URL, proxied)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text))
	return identity.New(identity.Options{Kubeconfig: path, Proxy: find})
}

func TestProxy_IsTheWayToTheAPIServer(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	p := startProxy(t, server)
	address := strings.Replace(p.URL, "http://", "http://me:hunter2@", 1)
	for name, environment := range map[string][]string{
		"upper case":   {"HTTPS_PROXY=http://wrong.test:1", "HTTPS_PROXY=" + address, "NO_PROXY=10.0.0.0/8"},
		"lower case":   {"https_proxy=" + address, "no_proxy=.internal"},
		"not for http": {"HTTP_PROXY=http://wrong.test:1", "HTTPS_PROXY=" + address},
	} {
		found := identity.ProxyOf(environment, "kubelet.service")
		id := identityOf(t, through(t, server, tokenUser("system:node:a"), func(context.Context) (identity.Proxy, error) { return found, nil }))
		readNode(t, id)
		if id.Proxy != found {
			t.Errorf("%s: the identity has the proxy %+v", name, id.Proxy)
		}
		if shown := id.Proxy.For(id.Server); shown != p.URL {
			t.Errorf("%s: shown as %s", name, shown)
		}
	}
	if heard := p.heard(); !strings.HasPrefix(heard, "CONNECT example.com:443 me:hunter2") {
		t.Errorf("the proxy was asked for\n%s", heard)
	}
}

func TestProxy_OfTheKubeconfigGoesFirst(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	p := startProxy(t, server)
	text := strings.ReplaceAll(server.kubeconfig(tokenUser("system:node:a")), `"server": "`+server.URL+`"`, `"server": "`+proxied+`", "proxy-url": "`+p.URL+`"`)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text))
	other := identity.Proxy{HTTPS: "http://127.0.0.1:1"}
	id := identityOf(t, identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) { return other, nil }}))
	if id.Proxy != identity.OfTheKubeconfig {
		t.Errorf("the identity has the proxy %+v", id.Proxy)
	}
}

// A client is made for each change of the proxy; one that cannot be found leaves the last one in use.
func TestProxy_IsFollowed(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
	steps := []identity.Proxy{
		{},
		{HTTPS: "http://me:hunter2@proxy.test:3128", HTTP: "http://proxy.test:3128", None: "a.test", From: "a"},
		{HTTPS: "http://me:hunter3@proxy.test:3128", HTTP: "http://proxy.test:3128", None: "a.test", From: "a"},
		{HTTPS: "http://me:hunter3@proxy.test:3128", HTTP: "http://proxy.test:3129", None: "a.test", From: "a"},
		{HTTPS: "http://me:hunter3@proxy.test:3128", HTTP: "http://proxy.test:3129", None: "127.0.0.1", From: "a"},
	}
	var step atomic.Int32
	step.Store(-1)
	k := identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) {
		if at := step.Load(); at >= 0 {
			return steps[at], nil
		}
		return identity.Proxy{}, errors.New("systemd cannot be asked")
	}})
	until := keepWarm(t, k)
	until("no proxy can be found", warm)
	for i, want := range steps {
		step.Store(int32(i))
		until("the proxy is followed", func(error) bool { return identityOf(t, k).Proxy == want })
	}
	step.Store(-1)
	until("no proxy can be found", warm)
	if got := identityOf(t, k).Proxy; got != steps[len(steps)-1] {
		t.Errorf("the identity has the proxy %+v", got)
	}
}

func TestProxy_OfAnEnvironment(t *testing.T) {
	t.Parallel()
	const server = "https://abc.gr7.eu-central-1.eks.amazonaws.com"
	kubelets := identity.ProxyOf([]string{"HTTPS_PROXY=http://kubelet.test", "NO_PROXY=a.test"}, "kubelet.service")
	for name, test := range map[string]struct {
		own                []string
		kubelets           identity.Proxy
		address, from, not string
	}{
		"not by its name":      {[]string{"HTTPS_PROXY=http://own.test", "NO_PROXY=169.254.169.254,.eu-central-1.eks.amazonaws.com"}, kubelets, "", "nth", "169.254.169.254,.eu-central-1.eks.amazonaws.com"},
		"not by its address":   {[]string{"HTTPS_PROXY=http://own.test", "NO_PROXY=10.0.0.0/8"}, kubelets, "http://own.test", "nth", "10.0.0.0/8"},
		"in lower case":        {[]string{"https_proxy=own.test", "no_proxy=*"}, kubelets, "", "nth", "*"},
		"only http has":        {[]string{"HTTP_PROXY=http://own.test"}, identity.Proxy{}, "", "nth", ""},
		"nobody has":           {nil, identity.Proxy{}, "", "nth", ""},
		"nth's own goes first": {[]string{"HTTPS_PROXY=http://own.test"}, kubelets, "http://own.test", "nth", ""},
		"then the kubelet's":   {nil, kubelets, "http://kubelet.test", "kubelet.service", "a.test"},
		"an exception of nth":  {[]string{"NO_PROXY=b.test"}, kubelets, "http://kubelet.test", "kubelet.service", "a.test,b.test"},
		"none for nth":         {[]string{"NO_PROXY=*"}, kubelets, "", "kubelet.service", "a.test,*"},
	} {
		got := identity.ProxyOf(test.own, "nth").Or(test.kubelets)
		if address := got.For(server); address != test.address || got.From != test.from || got.None != test.not {
			t.Errorf("%s: %q by %+v", name, address, got)
		}
	}
}

// secret is what may not be shown of a proxy's address.
var secret = regexp.MustCompile("hunter2|robot")

// The kubelet is written in Go: what Go makes of an address, it does.
func TestProxy_IsReadAsGoDoesAndHidesItsUser(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	for address, test := range map[string]struct {
		shown  string
		passed bool
	}{
		"http://robot:hunter2%@proxy.test:3128":   {"", true}, // a percent sign that was not escaped
		"http://robot:hunter2%zz@proxy.test:3128": {"", true},
		"http://robot:hunter2@proxy .test:3128":   {"", true}, // which Go takes for a path on the host "http"
		"robot:hunter2@proxy .test:3128":          {"what is no address of one", false},
		"http://robot:hunter2%25@proxy.test:3128": {"http://proxy.test:3128", false},
		"http://robot:1/hunter2@proxy.test:3128":  {"", true}, // which Go takes for the host "robot:1"
		"hunter2/1@proxy.test:3128":               {"", true},
		"robot:1?hunter2@proxy.test:3128":         {"", true},
		"http://robot:1#hunter2@proxy.test:3128":  {"", true},
		"robot:hunter2@proxy.test:3128":           {"http://proxy.test:3128", false},
		"proxy.test":                              {"http://proxy.test", false},
		"socks5://robot:hunter2@proxy.test":       {"socks5://proxy.test", false},
		"http://robot:hunter2@[proxy.test":        {"", true},
		"http://robot:hunter2@proxy.test:31x8":    {"", true},
	} {
		proxy := identity.ProxyOf([]string{"HTTPS_PROXY=" + address, "HTTP_PROXY=http://proxy.test"}, "kubelet.service")
		if got := proxy.For("https://apiserver.test"); got != test.shown {
			t.Errorf("%s: it is %q", address, got)
		}
		if got := slices.Equal(proxy.PassedOver(), []string{"HTTPS_PROXY"}); got != test.passed {
			t.Errorf("%s: %q are passed over", address, proxy.PassedOver())
		}
		if secret.MatchString(proxy.String()) {
			t.Errorf("%s: it is shown as %s", address, proxy)
		}
		path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
		readNode(t, identityOf(t, identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) { return proxy, nil }})))
	}
}

// An error is logged.
func TestProxy_FaultOfTheKubeconfigHidesItsUser(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	for _, address := range []string{
		"http://robot:hunter2%@proxy.test", "http://robot:hunter2@[proxy.test", "robot:hunter2@proxy.test", "ftp://robot:hunter2@proxy.test",
		"http://hunter2/1@proxy.test",
	} {
		text := strings.Replace(server.kubeconfig(tokenUser("system:node:a")), `"server":`, fmt.Sprintf(`"proxy-url": %q, "server":`, address), 1)
		path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text))
		_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(t.Context())
		wantError(t, err, path, "the cluster's proxy-url is no address of a proxy")
		_, otherErr := identity.Connect(path, identity.ClientOptions{})
		wantError(t, otherErr, path, "the cluster's proxy-url is no address of a proxy")
		if shown := fmt.Sprint(err, otherErr); secret.MatchString(shown) {
			t.Errorf("what may not be shown is: %s", shown)
		}
	}
}

func TestProxy_IsGivenToAPluginButNotForMetadata(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	p := startProxy(t, server)
	script := `{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/bin/sh", "args": ["-c", ` +
		`"[ $HTTPS_PROXY = $https_proxy ] && [ $NO_PROXY = a.test,169.254.169.254,fd00:ec2::254 ] && ` +
		`echo '{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1beta1\", \"status\": {\"token\": \"system:node:a\"}}'"]}}`
	found := identity.ProxyOf([]string{"HTTPS_PROXY=" + p.URL, "NO_PROXY=a.test"}, "kubelet.service")
	id := identityOf(t, through(t, server, script, func(context.Context) (identity.Proxy, error) { return found, nil }))
	if id.Node != "a" {
		t.Errorf("identity %+v", id)
	}
}
