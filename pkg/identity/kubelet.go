// Package identity borrows the kubelet's identity: it makes a client from the kubelet's own kubeconfig, and finds out which node that is.
// Newcomers begin with Kubelet in this file.
//
// The node's name comes from the credential. Every authenticated user may ask the API server for its user name, and that of a kubelet is
// "system:node:<name>"; hostnames, DNS and cloud metadata differ from it on some nodes. A credential that does not belong to a node is an
// error. It is asked for again with each warm-up, and when the API server has refused a request: a certificate may be renewed under
// another name.
//
// The kubeconfig is the kubelet's, so nth follows its changes, and those of the files that it names. One client is handed out for all of
// them: each request goes to the server, and with the credential, that were confirmed last. A kubeconfig that does not exist yet (the
// kubelet has not joined) is ErrNotYet. One that was deleted or is invalid leaves a client that works in use.
//
// docs/design.md describes what a kubelet's identity may do.
package identity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/text"
)

// SearchPaths are the usual paths of a kubelet's kubeconfig, in the order in which they are tried: Amazon's and Ubuntu's
// EKS images, Bottlerocket, kubeadm.
var SearchPaths = []string{
	"/var/lib/kubelet/kubeconfig",
	"/etc/kubernetes/kubelet/kubeconfig",
	"/etc/kubernetes/kubelet.conf",
}

// ErrNotYet means that the kubelet has no credential yet, and that it is worth waiting for one.
var ErrNotYet = errors.New("the kubelet has not joined its cluster yet")

// nodeUser is the prefix of every kubelet's user name; the rest is the node's name.
const nodeUser = "system:node:"

// errNoNode means that a credential does not belong to a node.
var errNoNode = errors.New("which is not a node (" + nodeUser + "<name>)")

// Options say where the identity is found.
type Options struct {
	ClientOptions
	// Kubeconfig is the file's path; empty means the first of SearchPaths that exists.
	Kubeconfig string
	// Root is the host's root directory; empty means "/". Kubeconfig, the files that it names and the exec plugin are below it.
	Root string
	// Read, if set, returns a kubeconfig that is not in a file, and says where it is from. If its error is an fs.ErrNotExist,
	// the identity is ErrNotYet. Kubeconfig is ignored then.
	Read func(ctx context.Context) (from string, text []byte, err error)
	// Proxy, if set, finds the proxy through which the API server is reached. It is called from time to time; after an error
	// the last proxy stays in use.
	Proxy func(ctx context.Context) (Proxy, error)
}

// Identity is a client with the rights of one node's kubelet. Its requests have no rate limit, and no timeout but their
// context's.
type Identity struct {
	// Client is the same for all identities of a Kubelet. A request goes where the identity that is known then says.
	Client kubernetes.Interface
	// Node is the name of the node.
	Node string
	// Source is the kubeconfig's path, or where else it is from, and Server the API server's address. Credential describes
	// the credential in a few words, as in "the exec plugin aws".
	Source, Server, Credential string
	// Proxy is the one through which the API server is reached.
	Proxy Proxy
}

// Kubelet finds the identity and keeps it. Its methods may be called from several goroutines.
type Kubelet struct {
	opts Options

	mu sync.Mutex
	// known is the identity that the API server has confirmed, and used the client for it.
	known Identity
	used  *loaded
	asked time.Time // when the API server was last asked whose the credential is, as it had refused a request
	// refreshing is the refresh that is under way; nil if there is none.
	refreshing *refresh

	// Only the refresh uses these: a client that was loaded and is not confirmed yet, and the proxy.
	next       *loaded
	proxy      Proxy
	proxyFound time.Time
}

// refresh reads the kubeconfig. When done is closed, err is why known could not be brought up to date.
type refresh struct {
	began time.Time
	done  chan struct{}
	err   error
}

// loaded is a client that was made from a kubeconfig and a proxy.
type loaded struct {
	*Client
	proxy  Proxy             // that the client uses
	digest [sha256.Size]byte // of the kubeconfig, the files that it names and the proxy
	// refusal is why it was not confirmed, and notBefore when the API server is asked again, after a backoff.
	refusal   error
	notBefore time.Time
	backoff   time.Duration
}

func (l *loaded) madeFrom(source string, digest [sha256.Size]byte) bool {
	return l != nil && l.Source == source && l.digest == digest
}

// New returns a Kubelet that has not looked for anything yet.
func New(opts Options) *Kubelet {
	opts.UserAgent, opts.root = cmp.Or(opts.UserAgent, "nth"), opts.Root
	return &Kubelet{opts: opts}
}

// Identity returns the identity. It makes no request if the kubeconfig is unchanged. Once there is an identity, it returns at
// once: a kubeconfig that was replaced is confirmed in the background. The error is an ErrNotYet if it is worth waiting.
func (k *Kubelet) Identity(ctx context.Context) (Identity, error) {
	known, refreshing := k.begin(ctx)
	if known.Client != nil {
		return known, nil
	}
	if err := refreshing.wait(ctx); err != nil {
		return Identity{}, err
	}
	return k.identity(), nil
}

func (k *Kubelet) identity() Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known
}

// begin returns the identity that is known so far, and the refresh that is under way. If there is none, it begins one.
func (k *Kubelet) begin(ctx context.Context) (Identity, *refresh) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refreshing == nil {
		r := &refresh{began: time.Now(), done: make(chan struct{})}
		k.refreshing = r
		go func() {
			r.err = text.Redacted(k.refresh(context.WithoutCancel(ctx)))
			k.mu.Lock()
			defer k.mu.Unlock()
			k.refreshing = nil
			close(r.done)
		}()
	}
	return k.known, k.refreshing
}

func (r *refresh) wait(ctx context.Context) error {
	late := time.NewTimer(time.Until(r.began.Add(kube.Identity)))
	defer late.Stop()
	select {
	case <-r.done:
		return r.err
	case <-late.C:
		return fmt.Errorf("looking at the kubeconfig takes more than %s: it, or a file that it names, cannot be read to its end", kube.Identity)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the kubelet's identity: %w", ctx.Err())
	}
}

// refresh brings known up to date with the kubeconfig.
func (k *Kubelet) refresh(ctx context.Context) error {
	source, document, err := k.read(ctx)
	if err != nil {
		return err
	}
	k.findProxy(ctx)
	config, digest, err := k.load(source, document)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig %s: %w", source, err)
	}
	k.mu.Lock()
	used := k.used
	k.mu.Unlock()
	if used.madeFrom(source, digest) {
		k.next = nil
		return nil
	}
	if !k.next.madeFrom(source, digest) {
		if k.next, err = k.connect(config, source, document); err != nil {
			return err
		}
		k.next.digest = digest
	}
	if used != nil && time.Now().Before(k.next.notBefore) {
		return k.next.refusal
	}
	node, err := k.next.node(ctx)
	if err != nil {
		k.next.refusal, k.next.backoff = err, min(max(2*k.next.backoff, time.Second), maxBackoff)
		k.next.notBefore = time.Now().Add(k.next.backoff)
		return err
	}
	return k.adopt(node)
}

// adopt makes the client that was confirmed to be that of a node the one that is used.
func (k *Kubelet) adopt(node string) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known.Client == nil {
		if k.known.Client, err = kube.NewClient("https://api-server", following{k}); err != nil {
			return err
		}
	}
	if k.used != nil {
		go utilnet.CloseIdleConnectionsFor(k.used.through)
	}
	k.used, k.next = k.next, nil
	k.known = Identity{
		Client: k.known.Client, Node: node, Source: k.used.Source, Server: k.used.Server, Credential: k.used.Credential(), Proxy: k.used.proxy,
	}
	return nil
}

// confirm asks the API server again whose the credential is, and returns the client that it has asked with; nil if there is none yet.
func (k *Kubelet) confirm(ctx context.Context) (*loaded, error) {
	k.mu.Lock()
	used := k.used
	k.mu.Unlock()
	if used == nil {
		return nil, nil
	}
	node, err := used.node(ctx)
	if err != nil {
		return used, text.Redacted(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.used == used {
		k.known.Node, k.known.Credential = node, used.Credential()
	}
	return used, nil
}

// askAgain is how often the API server is asked whose the credential is, at most, because it has refused requests. It refuses some in
// each drain, such as the eviction of a pod that is no longer on the node.
const askAgain = 5 * time.Second

// refused has the kubeconfig read, and asks whose the credential is, as the API server has refused a request.
func (k *Kubelet) refused(ctx context.Context) {
	k.mu.Lock()
	recently := time.Since(k.asked) < askAgain
	if !recently {
		k.asked = time.Now()
	}
	k.mu.Unlock()
	if recently {
		return
	}
	k.begin(ctx)
	go func() { _, _ = k.confirm(context.WithoutCancel(ctx)) }() // KeepWarm reports what keeps failing.
}

// following is a transport that sends each request to the API server that is known then, with the credential for it.
type following struct{ *Kubelet }

// RoundTrip implements http.RoundTripper.
func (f following) RoundTrip(request *http.Request) (*http.Response, error) {
	f.mu.Lock()
	to := f.used
	f.mu.Unlock()
	aimed := utilnet.CloneRequest(request)
	aimed.URL, aimed.Host = &url.URL{}, ""
	*aimed.URL = *request.URL
	aimed.URL.Scheme, aimed.URL.Host, aimed.URL.User = to.address.Scheme, to.address.Host, to.address.User
	aimed.URL.Path = strings.TrimSuffix(to.address.Path, "/") + request.URL.Path
	response, err := to.through.RoundTrip(aimed)
	if err == nil && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden) {
		f.refused(request.Context())
	}
	return response, err
}

// read returns the kubeconfig, and its path or where else it is from.
func (k *Kubelet) read(ctx context.Context) (source string, document []byte, err error) {
	if k.opts.Read != nil {
		from, document, err := k.opts.Read(ctx)
		return from, document, unlessMissing(err)
	}
	paths := SearchPaths
	if k.opts.Kubeconfig != "" {
		paths = []string{k.opts.Kubeconfig}
	}
	for _, path := range paths {
		if filepath.IsAbs(path) {
			path = filepath.Join(k.opts.Root, path)
		}
		document, err := readFile(path)
		if err == nil {
			return path, document, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
	}
	return "", nil, fmt.Errorf("%w: there is no kubeconfig at %s", ErrNotYet, strings.Join(paths, ", "))
}

// load reads what the kubeconfig names, and returns a digest of all that a client is made from.
func (k *Kubelet) load(source string, document []byte) (kubeconfig, [sha256.Size]byte, error) {
	if len(strings.TrimSpace(string(document))) == 0 {
		return kubeconfig{}, [sha256.Size]byte{}, fmt.Errorf("%w: it is empty", ErrNotYet)
	}
	config, err := parse(document, source, k.opts.Root)
	if err != nil {
		return kubeconfig{}, [sha256.Size]byte{}, err
	}
	config.credential = config.static()
	files, err := config.load()
	return config, sha256.Sum256(fmt.Appendf(nil, "%q %q %q\n%x %s", k.proxy.HTTPS, k.proxy.HTTP, k.proxy.None, files, document)), err
}

// connect makes a client. It makes no request.
func (k *Kubelet) connect(from kubeconfig, source string, document []byte) (*loaded, error) {
	config, err := from.config(document)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", source, err)
	}
	opts, proxy := k.opts.ClientOptions, k.proxy
	opts.environment = proxy.environment()
	if config.Proxy != nil {
		proxy = OfTheKubeconfig
	} else if proxy.set() {
		config.Proxy = func(request *http.Request) (*url.URL, error) { return proxy.find(request.URL) }
	}
	client, err := newClient(config, source, from.credential, opts)
	if err != nil {
		return nil, err
	}
	return &loaded{Client: client, proxy: proxy}, nil
}

// proxyInterval is how often Options.Proxy is called. The proxy is the kubelet's, and changes with its unit.
const proxyInterval = 10 * time.Second

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

// Labels requests the labels of the node.
func (id Identity) Labels(ctx context.Context) (map[string]string, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %q: %w", id.Node, err)
	}
	return node.Labels, nil
}

// KeepWarm uses the identity at about this interval until ctx ends, the first time at once, so that a connection, a token and
// a certificate are ready when they are needed and a replaced kubeconfig is noticed. After a failure the interval is shorter.
// tell is called from this goroutine with the result of each attempt, nil if the identity works.
func (k *Kubelet) KeepWarm(ctx context.Context, interval time.Duration, tell func(error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := k.warm(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(err)
		pause := interval
		if err != nil {
			pause = min(interval, maxBackoff)
		}
		timer.Reset(wait.Jitter(pause*9/10, 2.0/9)) // a tenth more or less, so that the nodes of a fleet do not ask in step
	}
}

// warm makes one cheap request with the identity.
func (k *Kubelet) warm(ctx context.Context) error {
	asked, err := k.confirm(ctx)
	_, refreshing := k.begin(ctx)
	refreshErr := refreshing.wait(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.used != asked { // Another one was confirmed meanwhile.
		return refreshErr
	}
	return errors.Join(err, refreshErr)
}
