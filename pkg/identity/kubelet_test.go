package identity_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

func TestKubelet_NodeIsTheCredentials(t *testing.T) {
	t.Parallel()
	server, dir := startAPIServer(t), t.TempDir()
	text := certificate(t, "system:node:certified")
	pair := place(t, filepath.Join(dir, "pki", "kubelet-client-current.pem"), text)
	token := place(t, filepath.Join(dir, "token"), []byte("system:node:from-file\n"))
	place(t, filepath.Join(dir, "relative.pem"), text)
	inline := base64.StdEncoding.EncodeToString(text)
	for name, test := range map[string]struct{ user, node, credential string }{
		"client certificate": {
			fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, pair, pair),
			"certified", "the client certificate " + pair,
		},
		"relative path": {
			`{"client-certificate": "relative.pem", "client-key": "relative.pem"}`,
			"certified", "the client certificate " + filepath.Join(dir, "relative.pem"),
		},
		"certificate in the kubeconfig": {
			fmt.Sprintf(`{"client-certificate-data": %q, "client-key-data": %q}`, inline, inline),
			"certified", "a client certificate in the kubeconfig",
		},
		"token file": {fmt.Sprintf(`{"tokenFile": %q}`, token), "from-file", "the token file " + token},
		"token":      {tokenUser("system:node:ip-10-0-0-1.ec2.internal"), "ip-10-0-0-1.ec2.internal", "a token in the kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			path := place(t, filepath.Join(dir, "kubeconfig"), []byte(server.kubeconfig(test.user)))
			id := identityOf(t, identity.New(identity.Options{Kubeconfig: path, ClientOptions: identity.ClientOptions{UserAgent: "nth/test"}}))
			want := identity.Identity{Client: id.Client, Node: test.node, Description: identity.Description{
				Source: path, Server: server.URL, Credential: test.credential,
			}}
			if id != want {
				t.Errorf("identity\n%+v, want\n%+v", id, want)
			}
			readNode(t, id)
			if limiter := id.Client.CoreV1().RESTClient().GetRateLimiter(); limiter != nil {
				t.Errorf("the client holds requests back: %T", limiter)
			}
		})
	}
	if agents := slices.Compact(server.agents); !slices.Equal(agents, []string{"nth/test"}) {
		t.Errorf("the server heard from %q", agents)
	}
}

func TestKubelet_NotYetJoined(t *testing.T) {
	t.Parallel()
	server, root := startAPIServer(t), t.TempDir()
	pair := "/var/lib/kubelet/pki/kubelet-client-current.pem"
	user := fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, pair, pair)
	k := identity.New(identity.Options{Root: root})

	_, err := k.Identity(t.Context())
	wantError(t, err, append(identity.SearchPaths, "has not joined")...)
	if !errors.Is(err, identity.ErrNotYet) {
		t.Errorf("without a kubeconfig: %v is no ErrNotYet", err)
	}

	path := place(t, filepath.Join(root, "/etc/kubernetes/kubelet.conf"), nil)
	if _, err = k.Identity(t.Context()); !errors.Is(err, identity.ErrNotYet) || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("of an empty file: %v", err)
	}
	place(t, path, []byte(server.kubeconfig(user)))
	_, err = k.Identity(t.Context())
	wantError(t, err, path, pair)
	if !errors.Is(err, identity.ErrNotYet) {
		t.Errorf("without the certificate: %v is no ErrNotYet", err)
	}

	place(t, filepath.Join(root, pair), nil)
	if _, err = k.Identity(t.Context()); !errors.Is(err, identity.ErrNotYet) || !strings.Contains(err.Error(), pair+" is empty") {
		t.Errorf("of an empty certificate: %v", err)
	}

	place(t, filepath.Join(root, pair), certificate(t, "system:node:joined"))
	if id := identityOf(t, k); id.Node != "joined" || id.Source != path {
		t.Errorf("identity: %+v", id)
	}
}

func TestKubeconfig_FirstOfTheSearchPathsCounts(t *testing.T) {
	t.Parallel()
	server, root := startAPIServer(t), t.TempDir()
	k := identity.New(identity.Options{Root: root})
	for i, path := range slices.Backward(identity.SearchPaths) {
		node := fmt.Sprintf("node-%d", i)
		place(t, filepath.Join(root, path), []byte(server.kubeconfig(tokenUser("system:node:"+node))))
		becomes(t, k, node)
	}
}

func TestKubeconfig_FaultIsOneLine(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	whole := server.kubeconfig(tokenUser("system:node:a"))
	for name, test := range map[string]struct{ text, says string }{
		"garbage":            {"\x00\x01 not: [a kubeconfig", "it is no kubeconfig"},
		"torn":               {whole[:len(whole)/2], "it is no kubeconfig"},
		"another kind":       {`{"apiVersion": "v1", "kind": "Pod"}`, "it is no kubeconfig"},
		"a wrong type":       {strings.Replace(whole, "{\"token\": ", "{\"token\": 5, \"a\": ", 1), "it is no kubeconfig"},
		"two of one name":    {strings.Replace(whole, `"users": [`, `"users": [{"name": "the-kubelet", "user": {}}, `, 1), "it is no kubeconfig"},
		"no context":         {strings.Replace(whole, `"current-context": "kubelet"`, `"current-context": "other"`, 1), "its current-context names no context"},
		"no cluster":         {strings.Replace(whole, `"cluster": "the-cluster"`, `"cluster": "other"`, 1), "a cluster that has a server"},
		"no user":            {strings.Replace(whole, `"user": "the-kubelet"`, `"user": "other"`, 1), "a cluster that has a server"},
		"no server":          {strings.Replace(whole, server.URL, "", 1), "a cluster that has a server"},
		"cert without key":   {server.kubeconfig(`{"client-certificate-data": "YQ=="}`), "credential is incomplete or unreadable"},
		"bad certificate":    {server.kubeconfig(`{"client-certificate-data": "YQ==", "client-key-data": "YQ=="}`), "PEM"},
		"plugin, no command": {server.kubeconfig(`{"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1"}}`), "credential is incomplete or unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(test.text))
			_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(t.Context())
			wantError(t, err, path, test.says)
			if errors.Is(err, identity.ErrNotYet) {
				t.Errorf("%v is an ErrNotYet, though waiting will not help", err)
			}
		})
	}
}

func TestKubelet_CredentialMustBeANodes(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	for _, user := range []string{"kubernetes-admin", "system:serviceaccount:kube-system:node", "system:node:"} {
		path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser(user))))
		_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(t.Context())
		wantError(t, err, path, fmt.Sprintf("%q", user), "needs the credential of a node")
	}
}

// authorityIn makes a kubeconfig name a file for the certificate authority.
func authorityIn(t *testing.T, server *apiServer, path string) []byte {
	t.Helper()
	inline := fmt.Sprintf(`"certificate-authority-data": %q`, base64.StdEncoding.EncodeToString(server.authority()))
	text := strings.Replace(server.kubeconfig(tokenUser("system:node:a")), inline, fmt.Sprintf(`"certificate-authority": %q`, path), 1)
	if !strings.Contains(text, path) {
		t.Fatalf("the kubeconfig names no authority:\n%s", text)
	}
	return []byte(text)
}

// A named pipe is read for as long as nobody writes into it.
func TestKubeconfig_NoFileIsNotRead(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	for name, user := range map[string]string{"the kubeconfig": tokenUser("system:node:a"), "a file that it names": `{"tokenFile": "pipe"}`} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pipe := filepath.Join(dir, "pipe")
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			path := place(t, filepath.Join(dir, "kubeconfig"), []byte(server.kubeconfig(user)))
			if name == "the kubeconfig" {
				path = pipe
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(ctx)
			wantError(t, err, pipe+": not a regular file")
		})
	}
}

func TestKubelet_MakesOneClientOfAReplacementThatIsRefused(t *testing.T) {
	t.Parallel()
	server, other := startAPIServer(t), startAPIServer(t)
	other.refuse(http.StatusForbidden)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
	k := identity.New(identity.Options{Kubeconfig: path})
	identityOf(t, k)
	place(t, path, []byte(other.kubeconfig(tokenUser("system:node:b"))))
	asked, until := 0, keepWarm(t, k)
	until("it was refused ten times", func(err error) bool {
		if err != nil {
			asked++
		}
		return asked == 10
	})
	if made := other.conns.Load(); made != 1 {
		t.Errorf("%d connections were made for %d questions", made, asked)
	}
}

func TestKeepWarm_ReportsNothingOnceItIsStopped(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
	server.mu.Lock() // No look ends.
	defer server.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	identity.New(identity.Options{Kubeconfig: path}).KeepWarm(ctx, time.Hour, func(_ identity.Identity, err error) { t.Errorf("it reported %v", err) })
}

// A kubeconfig that is being written, broken or gone, or whose server does not confirm it, takes nothing away from an identity that works.
func TestKubelet_OutlivesItsKubeconfig(t *testing.T) {
	t.Parallel()
	server, other, dir := startAPIServer(t), startAPIServer(t), t.TempDir()
	other.refuse(http.StatusForbidden)
	authority := place(t, filepath.Join(dir, "ca.crt"), server.authority())
	good := authorityIn(t, server, authority)
	path := place(t, filepath.Join(dir, "kubeconfig"), good)
	k := identity.New(identity.Options{Kubeconfig: path})
	first, until := identityOf(t, k), keepWarm(t, k)
	remove := func(path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, spoil := range map[string]func(){
		"the kubeconfig is empty":         func() { place(t, path, nil) },
		"the kubeconfig is half":          func() { place(t, path, good[:len(good)/2]) },
		"the kubeconfig is no YAML":       func() { place(t, path, []byte("}")) },
		"the kubeconfig is not confirmed": func() { place(t, path, []byte(other.kubeconfig(tokenUser("system:node:b")))) },
		"the kubeconfig is gone":          func() { remove(path) },
		"the authority is another's":      func() { place(t, authority, certificate(t, "another-cluster")) },
		"the authority is no certificate": func() { place(t, authority, []byte("-----BEGIN")) },
		"the authority is empty":          func() { place(t, authority, nil) },
		"the authority is gone":           func() { remove(authority) },
	} {
		spoil()
		until(name, func(err error) bool { return err != nil })
		if id := identityOf(t, k); id != first {
			t.Errorf("%s: the identity is %+v, want %+v", name, id, first)
		}
		readNode(t, first)
		place(t, authority, server.authority())
		place(t, path, good)
		until("all is well again, after "+name, warm)
	}
	other.refuse(0)
	place(t, path, []byte(other.kubeconfig(tokenUser("system:node:b"))))
	if id := becomes(t, k, "b"); id.Server != other.URL || id.Client != first.Client {
		t.Errorf("identity: %+v, want b at %s by the same client", id, other.URL)
	}
}

func TestKubelet_FollowsARotatedCertificate(t *testing.T) {
	t.Parallel()
	server, dir := startAPIServer(t), t.TempDir()
	pair := place(t, filepath.Join(dir, "current.pem"), certificate(t, "system:node:a"))
	path := place(t, filepath.Join(dir, "kubeconfig"), []byte(server.kubeconfig(fmt.Sprintf(`{"client-certificate": %q, "client-key": %q}`, pair, pair))))
	k := identity.New(identity.Options{Kubeconfig: path})
	first := identityOf(t, k)
	place(t, pair, certificate(t, "system:node:renamed"))
	second := becomes(t, k, "renamed")
	if second.Client != first.Client {
		t.Error("it has another client")
	}
	readNode(t, second)
	if last := server.requests[len(server.requests)-1]; last != "GET /api/v1/nodes/renamed by system:node:renamed" {
		t.Errorf("the last request was %s", last)
	}
}

// A certificate may be renewed under another name, and the kubeconfig stay as it is.
func TestKubelet_AsksAgainWhoseTheCredentialIs(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]func(*testing.T, *identity.Kubelet, identity.Identity){
		"when a request is refused": func(t *testing.T, _ *identity.Kubelet, id identity.Identity) {
			t.Helper()
			if id.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/"+id.Node).Do(t.Context()).Error() == nil {
				t.Error("the Node of another name was read")
			}
		},
		"with the next warm-up": func(t *testing.T, k *identity.Kubelet, _ identity.Identity) {
			t.Helper()
			keepWarm(t, k)("it is warm", warm)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := startAPIServer(t)
			path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a"))))
			k := identity.New(identity.Options{Kubeconfig: path})
			id := identityOf(t, k)
			server.set(func() { server.renamed = "system:node:b" })
			cause(t, k, id)
			readNode(t, becomes(t, k, "b"))
		})
	}
}

func TestCertificate_ThatHasExpiredIsNamed(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	server.refuse(http.StatusUnauthorized)
	to := time.Now().Add(-24 * time.Hour)
	pair := base64.StdEncoding.EncodeToString(certificateFor(t, "system:node:a", to.Add(-time.Hour), to))
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"),
		[]byte(server.kubeconfig(fmt.Sprintf(`{"client-certificate-data": %q, "client-key-data": %q}`, pair, pair))))
	_, err := identity.New(identity.Options{Kubeconfig: path}).Identity(t.Context())
	wantError(t, err, path, "the client certificate has expired: it was valid until "+to.UTC().Format("2006-01-02 15:04 UTC"))
}

// connectTo returns the client of a kubeconfig for a server elsewhere, with more fields of its cluster.
func connectTo(t *testing.T, more string) (*identity.Client, error) {
	t.Helper()
	server := startAPIServer(t)
	text := strings.ReplaceAll(server.kubeconfig(tokenUser("system:node:a")), `"server": "`+server.URL+`"`, more+`"server": "https://apiserver.test"`)
	return identity.Connect(place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(text)), identity.ClientOptions{})
}

// Without t.Parallel: the environment is set.
func TestProxy_IsTheKubeconfigsOrTheEnvironments(t *testing.T) {
	const own = "http://robot:hunter2%25@own.test:3128"
	for name, test := range map[string]struct{ environment, none, kubeconfig, want string }{
		"the environment's": {own, "10.0.0.0/8", "", "http://own.test:3128"},
		"an exception":      {own, ".test", "", ""},
		"the kubeconfig's":  {own, "", `"proxy-url": "http://robot:hunter2@other.test", `, "http://other.test"},
		"none":              {"", "", "", ""},
	} {
		t.Setenv("HTTPS_PROXY", test.environment)
		t.Setenv("NO_PROXY", test.none)
		if c, err := connectTo(t, test.kubeconfig); err != nil || c.Proxy != test.want {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// An error is logged. What net/http cannot read as the address of a proxy, it ignores, as the kubelet does.
func TestProxy_FaultHidesItsUserAndPassword(t *testing.T) {
	const wrong = "HTTPS_PROXY or HTTP_PROXY is no address of a proxy"
	for address, own := range map[string]string{
		"http://robot:hunter2%@proxy.test": "", "http://robot:hunter2@[proxy.test": "", "ftp://robot:hunter2@proxy.test": "",
		"http://robot:1/hunter2@proxy.test:3128": wrong, "http://hunter2/1@proxy.test": wrong,
	} {
		t.Setenv("HTTPS_PROXY", "")
		_, err := connectTo(t, fmt.Sprintf(`"proxy-url": %q, `, address))
		wantError(t, err, "the cluster's proxy-url is no address of a proxy")
		t.Setenv("HTTPS_PROXY", address)
		_, ownErr := connectTo(t, "")
		if said := fmt.Sprint(ownErr); own != "" && !strings.Contains(said, own) {
			t.Errorf("%s: %s", address, said)
		}
		if said := fmt.Sprint(err, ownErr); regexp.MustCompile("hunter2|robot").MatchString(said) {
			t.Errorf("what may not be shown is: %s", said)
		}
	}
}

func TestClient_ReportsEachRequest(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	var mu sync.Mutex
	var reported []string
	k := identity.New(identity.Options{
		Kubeconfig: place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(tokenUser("system:node:a")))),
		ClientOptions: identity.ClientOptions{Requested: func(method string, status int) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, fmt.Sprintf("%s %d", method, status))
		}},
	})
	server.refuse(http.StatusForbidden)
	_, _ = k.Identity(t.Context()) // is refused
	server.refuse(0)
	if _, err := k.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Close()
	id, _ := k.Identity(t.Context())
	_, _ = id.Client.Discovery().ServerVersion() // nobody is there, which client-go may ask twice
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"POST 403", "POST 201", "GET 0"}; !slices.Equal(slices.Compact(reported), want) {
		t.Errorf("reported are %q, want %q", reported, want)
	}
}

func TestRights_AreAskedForAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	id := borrow(t, server.kubeconfig(tokenUser("system:node:a")))
	server.set(func() { server.denied["delete pods"] = true })
	var allowed, refused []string
	for _, right := range id.Rights() {
		may, err := id.CheckPermission(t.Context(), right)
		if err != nil {
			t.Fatal(err)
		}
		if right.For == "" {
			t.Errorf("it is not told what %q is for", right)
		}
		if may {
			allowed = append(allowed, right.String())
		} else {
			refused = append(refused, right.String())
		}
	}
	want := []string{
		"get nodes a", "patch nodes a", "list pods", "watch pods", "create pods/eviction", "patch nodes/status a", "create events",
	}
	if !slices.Equal(allowed, want) {
		t.Errorf("allowed: %q, want %q", allowed, want)
	}
	if !slices.Equal(refused, []string{"delete pods"}) {
		t.Errorf("refused: %q", refused)
	}
	// The Node authorizer lets a kubelet list the pods of its own node only.
	if got := server.reviews["list pods"]; !strings.Contains(got, `"key":"spec.nodeName","operator":"In","values":["a"]`) {
		t.Errorf("asked for the right to list pods: %s", got)
	}
}

func TestRights_FaultNamesRightAndServer(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	id := borrow(t, server.kubeconfig(tokenUser("system:node:a")))
	server.refuse(http.StatusServiceUnavailable)
	_, err := id.CheckPermission(t.Context(), id.Rights()[0])
	wantError(t, err, "whether nth may get nodes a", server.URL)
}
