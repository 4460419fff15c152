// Package identity borrows the kubelet's identity: it makes a client from the kubelet's own kubeconfig, and finds out which node that is.
// Newcomers begin with Kubelet in this file.
//
// The node's name comes from the credential. Every authenticated user may ask the API server for its user name, and that of a kubelet is
// "system:node:<name>"; hostnames, DNS and cloud metadata differ from it on some nodes. A credential that does not belong to a node is an
// error. It is asked for again with each warm-up, every few seconds in a drain, and when a request has failed or was refused: a certificate
// may be renewed under another name.
//
// The kubelet may change its kubeconfig, so nth reads that again at the same times, with the files that it names. All callers get the same
// client: each of its requests goes to the server, and with the credential, that were confirmed last. A kubeconfig that does not exist yet (the
// kubelet has not joined) is ErrNotYet. If the kubeconfig is deleted or becomes invalid, the client that works stays in use.
//
// docs/design.md describes what a kubelet's identity may do.
package identity

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
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

// Options say where the identity is found.
type Options struct {
	ClientOptions
	// Kubeconfig is the file's path; empty means the first of SearchPaths that exists.
	Kubeconfig string
	// Root is the host's root directory; empty means "/". Kubeconfig, the files that it names and the exec plugin are below it.
	Root string
	// Document, if set, is the text of a kubeconfig, and Kubeconfig is ignored.
	Document []byte
}

// Identity is a client with the rights of one node's kubelet. Its requests have no rate limit, and no timeout but their
// context's.
type Identity struct {
	// Client is the same for all identities of a Kubelet. A request goes where the identity that is known then says.
	Client kubernetes.Interface
	// Node is the name of the node.
	Node string
	Description
}

// Kubelet finds the identity and keeps it. Its methods may be called from several goroutines.
type Kubelet struct {
	opts   Options
	client kubernetes.Interface // that of each Identity
	known  atomic.Pointer[known]

	// looks are looks at the kubeconfig, one at a time. Only a look uses what follows: when it began, its error, and the last client that was
	// made, which the API server may not have confirmed.
	looks  singleflight.Group
	looked time.Time
	result error
	newest *Client
}

// known is the client in use, and the node that the API server has confirmed for it.
type known struct {
	*Client
	node string
}

// New returns a Kubelet that has not looked for anything yet.
func New(opts Options) *Kubelet {
	opts.UserAgent, opts.root = cmp.Or(opts.UserAgent, "nth"), opts.Root // The exec plugin has the host's root directory, too.
	k := &Kubelet{opts: opts}
	k.client, _ = kube.NewClient("https://api-server", following{k}) // following replaces the address, which is valid.
	return k
}

// lookPause is the shortest time between two looks, except those of KeepWarm. A drain calls Identity all the time. In each drain the API server
// refuses some requests, such as the eviction of a pod that is no longer on the node, and each refusal asks for a look.
const lookPause = 5 * time.Second

// Identity returns the kubelet's identity. If one is known, it returns that at once, and looks for changes in the background. Otherwise it waits
// for a look. The error is an ErrNotYet if the kubelet has no credential yet: try again later.
func (k *Kubelet) Identity(ctx context.Context) (Identity, error) {
	if k.known.Load() == nil {
		if err := k.lookNow(ctx); err != nil {
			return Identity{}, err
		}
	}
	k.look(ctx, lookPause) // in the background
	in := k.known.Load()
	return Identity{Client: k.client, Node: in.node, Description: in.Description}, nil
}

// look looks at the kubeconfig in the background, unless that began less than pause ago. The result is that of this look, or of the last one.
func (k *Kubelet) look(ctx context.Context, pause time.Duration) <-chan singleflight.Result {
	return k.looks.DoChan("", func() (any, error) {
		if k.looked.IsZero() || time.Since(k.looked) >= pause {
			k.looked = time.Now()
			k.result = text.Redacted(k.refresh(context.WithoutCancel(ctx))) // Other callers wait for it, too.
		}
		return nil, k.result
	})
}

// lookNow looks at the kubeconfig, and returns why known could not be confirmed or brought up to date. If ctx ends first, the look continues.
func (k *Kubelet) lookNow(ctx context.Context) error {
	select {
	case look := <-k.look(ctx, 0):
		return look.Err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the kubelet's identity: %w", ctx.Err())
	}
}

// refresh brings k.known up to date with the kubeconfig. If the kubeconfig is unchanged or cannot be used, refresh asks the API server again
// which node the credential in use belongs to. Each look calls it once.
func (k *Kubelet) refresh(ctx context.Context) error {
	inUse := k.known.Load()
	newest, failure := k.load()
	if failure == nil && (inUse == nil || newest != inUse.Client) {
		if failure = k.confirm(ctx, newest); failure == nil {
			return nil
		}
	}
	if inUse == nil { // No client has worked yet.
		return failure
	}
	return errors.Join(failure, k.confirm(ctx, inUse.Client))
}

// confirm asks the API server which node a client's credential belongs to, and puts the client in use. Callers of Identity keep the Client that
// they got first: its requests go through the client in use (see following).
func (k *Kubelet) confirm(ctx context.Context, c *Client) error {
	node, err := c.node(ctx)
	if err != nil {
		return err
	}
	if before := k.known.Swap(&known{c, node}); before != nil && before.Client != c {
		go utilnet.CloseIdleConnectionsFor(before.through)
	}
	return nil
}

// following is a transport that sends each request through the client in use: to its API server, with its credential.
type following struct{ *Kubelet }

// RoundTrip implements http.RoundTripper. After a failed or refused request, it starts a look: the kubeconfig may have changed.
func (f following) RoundTrip(request *http.Request) (*http.Response, error) {
	to := f.known.Load()
	aimed := utilnet.CloneRequest(request)
	aimed.URL, aimed.Host = &url.URL{}, ""
	*aimed.URL = *request.URL
	aimed.URL.Scheme, aimed.URL.Host, aimed.URL.User = to.address.Scheme, to.address.Host, to.address.User
	aimed.URL.Path = strings.TrimSuffix(to.address.Path, "/") + request.URL.Path
	response, err := to.through.RoundTrip(aimed)
	refused := err == nil && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden)
	if refused || err != nil && !errors.Is(err, context.Canceled) {
		f.look(request.Context(), lookPause) // KeepWarm reports what keeps failing.
	}
	return response, err
}

// document returns the path and the text of the kubeconfig.
func (k *Kubelet) document() (path string, document []byte, err error) {
	if k.opts.Document != nil {
		return "in memory", k.opts.Document, nil
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

// load returns a client for the kubeconfig as it is now. It makes one if the kubeconfig, or a file that it names, has changed, and sends no
// request.
func (k *Kubelet) load() (*Client, error) {
	path, document, err := k.document()
	if err != nil {
		return nil, err
	}
	failed := func(err error) (*Client, error) { return nil, fmt.Errorf("reading the kubeconfig %s: %w", path, err) }
	if len(bytes.TrimSpace(document)) == 0 {
		return failed(fmt.Errorf("%w: it is empty", ErrNotYet))
	}
	parsed, err := parse(document, path, k.opts.Root)
	if err != nil {
		return failed(err)
	}
	version, err := parsed.version()
	if err != nil {
		return failed(err)
	}
	version += path + string(document)
	if k.newest != nil && k.newest.version == version {
		return k.newest, nil
	}
	client, err := parsed.client(path, k.opts.ClientOptions)
	if err != nil {
		return nil, err
	}
	client.version = version
	k.newest = client
	return client, nil
}

// Labels requests the labels of the node.
func (id Identity) Labels(ctx context.Context) (map[string]string, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %q: %w", id.Node, err)
	}
	return node.Labels, nil
}

// failurePause is the pause after a failure: the identity must work by the next notice.
const failurePause = 10 * time.Second

// KeepWarm looks at the kubeconfig and uses the credential at about this interval until ctx ends, the first time at once. So a connection, a
// token and a certificate are ready when a drain needs them, and a replaced kubeconfig is noticed. After a failure the interval is shorter.
// KeepWarm calls report with the result of each attempt, in this goroutine; nil means that the identity works.
func (k *Kubelet) KeepWarm(ctx context.Context, interval time.Duration, report func(error)) {
	for {
		err := k.lookNow(ctx)
		if ctx.Err() != nil {
			return
		}
		report(err)
		pause := interval
		if err != nil {
			pause = min(interval, failurePause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(pause*9/10, 2.0/9)): // a tenth more or less, so that the nodes of a fleet do not ask in step
		}
	}
}
