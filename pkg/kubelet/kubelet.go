// Package kubelet borrows the kubelet's identity: it makes a client from the kubelet's own kubeconfig, and finds out which
// node that is.
//
// The node's name comes from the credential. Every authenticated user may ask the API server for its user name, and that of
// a kubelet is "system:node:<name>"; hostnames, DNS and cloud metadata differ from it on some nodes. A credential that does
// not belong to a node is an error.
//
// The kubeconfig is the kubelet's, so nth follows its changes. A kubeconfig that does not exist yet (the kubelet has not
// joined) is ErrNotYet. One that was replaced is loaded, and used once the API server has confirmed whose it is. One that
// was deleted or is invalid leaves an identity that works in use. The same holds for the certificate authority that it
// names, and for the proxy. client-go follows the files that it names: a rotated client certificate is read at the next
// connection, which is made within five minutes, and a token file every minute. pkg/apiserver runs an exec plugin before its
// token expires. KeepWarm uses the identity regularly, so that no drain has to wait for any of this.
//
// The kubeconfig is parsed by client-go. docs/design.md describes what a kubelet's identity may do.
package kubelet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	authentication "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/nth-project/nth/pkg/apiserver"
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

// requestTimeout is how long the API server, and an exec plugin that has to run first, may take to answer.
const requestTimeout = 10 * time.Second

// refreshTimeout is how long callers wait while the kubeconfig is read: the request to the API server, and as long again for
// the proxy. The read of a file on a network file system that is gone cannot be aborted, so that the refresh itself goes on.
const refreshTimeout = 2 * requestTimeout

// Options say where the identity is found.
type Options struct {
	// Kubeconfig is the file's path; empty means the first of SearchPaths that exists.
	Kubeconfig string
	// Root is the host's root directory; empty means "/". Kubeconfig and the files that it names are below it.
	Root string
	// Launcher is a command line to which the exec plugin's is appended, to run a plugin that is below Root. If empty, the
	// plugin is run as the kubeconfig says.
	Launcher []string
	// Read, if set, returns a kubeconfig that is not in a file, and says where it is from. If its error is an fs.ErrNotExist,
	// the identity is ErrNotYet. Kubeconfig is ignored then.
	Read func(ctx context.Context) (from string, text []byte, err error)
	// Token, if set, replaces an exec plugin that makes tokens for an EKS cluster. It gets the cluster and the region that
	// the plugin would be called with; an empty region is the instance's own.
	Token func(ctx context.Context, cluster, region string) (token string, expires time.Time, err error)
	// Fallback runs the exec plugin if it does more than make such a token, if Token fails, and if the API server refuses
	// the token.
	Fallback bool
	// Proxy, if set, finds the proxy through which the API server is reached. It is called from time to time; after an error
	// the last proxy stays in use.
	Proxy func(ctx context.Context) (Proxy, error)
	// UserAgent identifies nth in the API server's audit log, as in "nth/v1.0.0".
	UserAgent string
	// Requested, if set, is called after each request to the API server, from several goroutines at once, with the HTTP
	// method and the status code of the response; 0 if there was no response.
	Requested func(method string, status int)
}

// Identity is a client with the rights of one node's kubelet. Its requests have no rate limit, and no timeout but their
// context's.
type Identity struct {
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
	// known is the identity that the API server has confirmed.
	known Identity
	// refreshing is the refresh that is under way; nil if there is none.
	refreshing *refresh

	// Only the refresh uses these: the client of known, one that was loaded since and is not confirmed yet, and the proxy.
	current, next loaded
	proxy         Proxy
	proxyFound    time.Time
}

// refresh reads the kubeconfig. When done is closed, err is why known could not be brought up to date.
type refresh struct {
	began time.Time
	done  chan struct{}
	err   error
}

// loaded is a client that was made from a kubeconfig and a proxy. The zero value is none.
type loaded struct {
	apiserver.Client
	proxy  Proxy             // that the client uses
	digest [sha256.Size]byte // of the kubeconfig and the proxy
	// authority is the file of the cluster's certificate authority, "" if there is none, and trusted what was read from it.
	authority string
	trusted   []byte
	// refusal is why it was not confirmed, and notBefore when the API server is asked again, after a backoff.
	refusal   error
	notBefore time.Time
	backoff   time.Duration
}

func (l loaded) madeFrom(source string, digest [sha256.Size]byte) bool {
	return l.Interface != nil && l.Source == source && l.digest == digest && !l.authorityChanged()
}

// authorityChanged reports whether the certificate authority's file has another content than the client was made with. A file
// that cannot be read counts as unchanged.
func (l loaded) authorityChanged() bool {
	if l.authority == "" || notAFile(l.authority) != nil {
		return false
	}
	text, err := os.ReadFile(l.authority)
	return err == nil && !bytes.Equal(text, l.trusted)
}

// New returns a Kubelet that has not looked for anything yet.
func New(opts Options) *Kubelet { return &Kubelet{opts: opts} }

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
			r.err = k.refresh(context.WithoutCancel(ctx))
			k.mu.Lock()
			defer k.mu.Unlock()
			k.refreshing = nil
			close(r.done)
		}()
	}
	return k.known, k.refreshing
}

func (r *refresh) wait(ctx context.Context) error {
	late := time.NewTimer(time.Until(r.began.Add(refreshTimeout)))
	defer late.Stop()
	select {
	case <-r.done:
		return r.err
	case <-late.C:
		return fmt.Errorf("looking at the kubeconfig takes more than %s: it, or a file that it names, cannot be read to its end", refreshTimeout)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the kubelet's identity: %w", ctx.Err())
	}
}

// refresh brings known up to date with the kubeconfig.
func (k *Kubelet) refresh(ctx context.Context) error {
	source, text, err := k.read(ctx)
	if err != nil {
		return err
	}
	k.findProxy(ctx)
	digest := sha256.Sum256(append(fmt.Appendf(nil, "%q %q %q\n", k.proxy.HTTPS, k.proxy.HTTP, k.proxy.None), text...))
	if k.current.madeFrom(source, digest) {
		k.next = loaded{}
		return nil
	}
	if !k.next.madeFrom(source, digest) {
		next, err := k.load(source, text)
		if err != nil {
			return err
		}
		next.digest = digest
		k.next = next
	}
	known := k.identity()
	if known.Client != nil && time.Now().Before(k.next.notBefore) {
		return k.next.refusal
	}
	node, err := whose(ctx, k.next.Client)
	if errors.Is(err, errNoNode) && k.next.Doubt() {
		node, err = whose(ctx, k.next.Client)
	}
	if err != nil {
		k.next.refusal, k.next.backoff = err, min(max(2*k.next.backoff, time.Second), maxBackoff)
		k.next.notBefore = time.Now().Add(k.next.backoff)
		return err
	}
	k.current, k.next = k.next, loaded{}
	client := k.current.Client
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = Identity{
		Client: client.Interface, Node: node, Source: source, Server: client.Server, Credential: client.Proof(), Proxy: k.current.proxy,
	}
	return nil
}

// read returns the kubeconfig, and its path or where else it is from.
func (k *Kubelet) read(ctx context.Context) (string, []byte, error) {
	if k.opts.Read != nil {
		from, text, err := k.opts.Read(ctx)
		return from, text, unlessMissing(err)
	}
	paths := SearchPaths
	if k.opts.Kubeconfig != "" {
		paths = []string{k.opts.Kubeconfig}
	}
	for _, path := range paths {
		path = k.onHost(path)
		if err := notAFile(path); err != nil {
			return "", nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
		text, err := os.ReadFile(path)
		if err == nil {
			return path, text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
	}
	return "", nil, fmt.Errorf("%w: there is no kubeconfig at %s", ErrNotYet, strings.Join(paths, ", "))
}

// notAFile returns an error for a path whose read could block for ever, such as that of a named pipe. It ignores errors of
// stat: reading the file reports them.
func notAFile(path string) error {
	found, err := os.Stat(path)
	if err == nil && found.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0 {
		return fmt.Errorf("%s is no file", path)
	}
	return nil
}

// onHost turns an absolute path on the host into one that this process can open.
func (k *Kubelet) onHost(path string) string {
	if k.opts.Root == "" || !filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(k.opts.Root, path)
}

// whose asks the API server for the node to which the client's credential belongs.
func whose(ctx context.Context, client apiserver.Client) (node string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	review, err := client.AuthenticationV1().SelfSubjectReviews().
		Create(ctx, &authentication.SelfSubjectReview{}, meta.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking %s whose credential is in %s: %w", client.Server, client.Source, apiserver.OneLine(err))
	}
	user := review.Status.UserInfo.Username
	node, found := strings.CutPrefix(user, nodeUser)
	if !found || node == "" {
		return "", fmt.Errorf("the credential in %s belongs to the user %q, %w", client.Source, user, errNoNode)
	}
	return node, nil
}

// Labels requests the labels of the node.
func (id Identity) Labels(ctx context.Context) (map[string]string, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %q: %w", id.Node, err)
	}
	return node.Labels, nil
}

// maxBackoff is the longest pause after a failure: the identity must work by the next notice.
const maxBackoff = 10 * time.Second

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
	_, refreshing := k.begin(ctx)
	refreshErr := refreshing.wait(ctx)
	id := k.identity()
	if id.Client == nil {
		return refreshErr
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The API server answers version "0" from its cache. That there is no such node proves the identity as well.
	_, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{ResourceVersion: "0"})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading node %q with the credential in %s: %w", id.Node, id.Source, apiserver.OneLine(err))
	}
	return refreshErr
}
