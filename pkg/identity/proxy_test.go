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
	"time"

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

func TestTheAPIServerIsReachedThroughTheKubeletsProxy(t *testing.T) {
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
			t.Errorf("%s: the identity tells of %+v", name, id.Proxy)
		}
		if shown := id.Proxy.For(id.Server); shown != p.URL {
			t.Errorf("%s: shown as %s", name, shown)
		}
	}
	if heard := p.heard(); !strings.HasPrefix(heard, "CONNECT example.com:443 me:hunter2") {
		t.Errorf("the proxy was asked for\n%s", heard)
	}
}

// The proxy is asked for now and then, the first time at once.
func TestAProxyThatChangesInAnyOfItsWordsLeadsToAnotherClient(t *testing.T) {
	server := startAPIServer(t)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
	before := identity.Proxy{HTTPS: "http://me:hunter2@proxy.test:3128", HTTP: "http://proxy.test:3128", None: "a.test", From: "a"}
	for name, change := range map[string]func(*identity.Proxy){
		"the password":       func(p *identity.Proxy) { p.HTTPS = "http://me:hunter3@proxy.test:3128" },
		"the one for http":   func(p *identity.Proxy) { p.HTTP = "http://proxy.test:3129" },
		"what goes directly": func(p *identity.Proxy) { p.None = "b.test" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := before
			change(&after)
			var asked atomic.Int32
			k := identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) {
				if asked.Add(1) == 1 {
					return before, nil
				}
				return after, nil
			}})
			if first := identityOf(t, k); first.Proxy != before {
				t.Errorf("the identity tells of %+v", first.Proxy)
			}
			for limit := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if identityOf(t, k).Proxy == after {
					return
				}
				if time.Now().After(limit) {
					t.Fatalf("it is still the proxy of before, after the proxy was asked for %d times", asked.Load())
				}
			}
		})
	}
}

func TestWhatNeedsNoProxyIsReachedWithoutOne(t *testing.T) {
	for name, test := range map[string]struct {
		environment []string
		want        string
	}{
		"by its name":    {[]string{"HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=169.254.169.254,.eu-central-1.eks.amazonaws.com"}, ""},
		"by its address": {[]string{"HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=10.0.0.0/8"}, "http://proxy.test:3128"},
		"in lower case":  {[]string{"https_proxy=proxy.test:3128", "no_proxy=*"}, ""},
		"only http has":  {[]string{"HTTP_PROXY=http://proxy.test:3128"}, ""},
		"nobody has":     {nil, ""},
	} {
		if got := identity.ProxyOf(test.environment, "kubelet.service").For("https://abc.gr7.eu-central-1.eks.amazonaws.com"); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestNthsOwnProxyGoesBeforeTheKubelets(t *testing.T) {
	kubelets := identity.ProxyOf([]string{"HTTPS_PROXY=http://kubelet.test", "NO_PROXY=a.test"}, "kubelet.service")
	for name, test := range map[string]struct {
		own                []string
		address, from, not string
	}{
		"it has one":           {[]string{"HTTPS_PROXY=http://own.test"}, "http://own.test", "nth", ""},
		"it has none":          {nil, "http://kubelet.test", "kubelet.service", "a.test"},
		"it has an exception":  {[]string{"NO_PROXY=b.test"}, "http://kubelet.test", "kubelet.service", "a.test,b.test"},
		"it is to go directly": {[]string{"NO_PROXY=*"}, "", "kubelet.service", "a.test,*"},
	} {
		got := identity.ProxyOf(test.own, "nth").Or(kubelets)
		if address := got.For("https://c.test"); address != test.address || got.From != test.from || got.None != test.not {
			t.Errorf("%s: %q by %+v", name, address, got)
		}
	}
}

// secret is what may not be told of a proxy's address.
var secret = regexp.MustCompile("hunter2|robot")

// The kubelet is written in Go: what Go makes of an address, it does.
func TestAnAddressIsReadAsGoDoesAndToldWithoutUserAndPassword(t *testing.T) {
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
			t.Errorf("%s: it is told as %s", address, proxy)
		}
		path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
		readNode(t, identityOf(t, identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) { return proxy, nil }})))
	}
}

// An error is logged.
func TestAProxyOfTheKubeconfigThatIsNoneIsToldWithoutUserAndPassword(t *testing.T) {
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
		if told := fmt.Sprint(err, otherErr); secret.MatchString(told) {
			t.Errorf("what may not be told is: %s", told)
		}
	}
}

func TestTheKubeconfigsOwnProxyGoesBeforeAnyOther(t *testing.T) {
	server := startAPIServer(t)
	p := startProxy(t, server)
	text := strings.ReplaceAll(server.kubeconfig(tokenUser("system:node:a")), `"server": "`+server.URL+`"`, `"server": "`+proxied+`", "proxy-url": "`+p.URL+`"`)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text))
	other := identity.Proxy{HTTPS: "http://127.0.0.1:1"}
	id := identityOf(t, identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) { return other, nil }}))
	if id.Proxy != identity.OfTheKubeconfig {
		t.Errorf("the identity tells of %+v", id.Proxy)
	}
}

func TestAProxyThatCannotBeFoundLeavesTheWayAsItIs(t *testing.T) {
	server := startAPIServer(t)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
	id := identityOf(t, identity.New(identity.Options{Kubeconfig: path, Proxy: func(context.Context) (identity.Proxy, error) {
		return identity.Proxy{}, errors.New("there is no systemd")
	}}))
	if id.Node != "a" || id.Proxy != (identity.Proxy{}) {
		t.Errorf("identity %+v", id)
	}
}

func TestAPluginIsGivenTheProxyAndNoWayToTheMetadataServiceThroughIt(t *testing.T) {
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
