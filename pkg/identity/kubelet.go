// Package identity borrows the kubelet's identity: it makes a client from the kubelet's own kubeconfig, and finds out which node that is. Start with
// Kubelet in this file. docs/design.md describes what a kubelet's identity may do.
//
// The node's name comes from the credential. Every authenticated user may ask the API server for its own user name. A kubelet's user name is
// "system:node:<name>"; hostnames, DNS and cloud metadata have another name on some nodes. A credential that does not belong to a node is an error.
//
// A look reads the kubeconfig, with the files that the kubeconfig names, and asks the API server for the node's name. The kubelet may change its
// kubeconfig, or renew its certificate under another name. There is a look at each warm-up, every few seconds in a drain, and when a request has
// failed or was refused.
//
// All callers get the same client. It sends each request to the API server, and with the credential, that the last successful look has confirmed.
// While the kubelet has no kubeconfig, as it has not joined the cluster, the error is ErrNotYet. If the kubeconfig is deleted later, or becomes
// invalid, the client that works stays in use.
package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
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

// SearchPaths are the usual paths of a kubelet's kubeconfig: on Amazon's and Ubuntu's EKS images, on Bottlerocket, with kubeadm. nth takes the first
// that exists.
var SearchPaths = []string{
	"/var/lib/kubelet/kubeconfig",
	"/etc/kubernetes/kubelet/kubeconfig",
	"/etc/kubernetes/kubelet.conf",
}

// ErrNotYet means that the kubelet has no credential yet: the caller should wait, and try again.
var ErrNotYet = errors.New("the kubelet has not joined its cluster yet")

// nodeUser is the prefix of every kubelet's user name; the rest is the node's name.
const nodeUser = "system:node:"

// Options are the options of a Kubelet: where its kubeconfig is, and how its client behaves.
type Options struct {
	ClientOptions
	// Kubeconfig is the file's absolute path; empty means the first of SearchPaths that exists.
	Kubeconfig string
	// Root is the host's root directory; empty means "/". The kubeconfig, the files that the kubeconfig names, and the exec plugin are below
	// Root.
	Root string
	// Document, if set, is the text of a kubeconfig; then Kubeconfig is ignored.
	Document []byte
}

// Identity is a client with the rights of one node's kubelet. The client's requests have no rate limit, and no timeout but their context's.
type Identity struct {
	// Client is the same for all identities of a Kubelet: see following.
	Client kubernetes.Interface
	// Node is the name of the node.
	Node string
	Description
}

// Kubelet finds the identity and keeps it. Its methods may be called from several goroutines.
type Kubelet struct {
	opts   Options
	client kubernetes.Interface  // the Client of each Identity
	known  atomic.Pointer[known] // nil before the first look that succeeds

	looks singleflight.Group // runs the looks, one at a time
	// Only a look uses these.
	looked  time.Time // when the last look began
	lookErr error     // the error of the last look
	newest  *Client   // the last client that was made; the API server may not have confirmed its node
}

// known is the client in use, and the name of the node that the API server has confirmed for it.
type known struct {
	*Client
	node string
}

// New returns a Kubelet that has not looked for anything yet.
func New(opts Options) *Kubelet {
	opts.root = opts.Root // The exec plugin has the host's root directory, too.
	k := &Kubelet{opts: opts}
	k.client, _ = kube.NewClient("https://api-server", following{k}) // The address is valid, so that there is no error. following replaces it.
	return k
}

// lookPause is the shortest time between two looks, except those of KeepWarm. A drain calls Identity all the time. And the API server refuses some
// requests of each drain, such as the eviction of a pod that is no longer on the node. Each refusal would cause a look.
const lookPause = 5 * time.Second

// Identity returns the kubelet's identity. If an earlier look has found it, Identity does not wait, and a look in the background finds changes.
// Otherwise Identity waits for a look. If the kubelet has no credential yet, the error is an ErrNotYet: try again later.
func (k *Kubelet) Identity(ctx context.Context) (Identity, error) {
	if k.known.Load() == nil {
		if err := k.lookNow(ctx); err != nil {
			return Identity{}, err
		}
	}
	k.look(ctx, lookPause) // in the background
	return k.inUse(), nil
}

// inUse returns the identity that the last successful look has found; the zero value before the first.
func (k *Kubelet) inUse() Identity {
	known := k.known.Load()
	if known == nil {
		return Identity{}
	}
	return Identity{Client: k.client, Node: known.node, Description: known.Description}
}

// look starts a look in the background, unless the last look began less than pause ago. The channel gets the error of the look or, if none was
// started, of the last one. If a look runs already, the channel gets the error of that look.
func (k *Kubelet) look(ctx context.Context, pause time.Duration) <-chan singleflight.Result {
	return k.looks.DoChan("", func() (any, error) {
		if time.Since(k.looked) >= pause {
			k.looked = time.Now()
			k.lookErr = text.Redacted(k.refresh(context.WithoutCancel(ctx))) // Other callers wait for this look, too, so ctx must not end it.
		}
		return nil, k.lookErr
	})
}

// lookNow starts a look, or joins the one that runs, and waits for its error. The error says why k.known could not be confirmed or brought up to
// date. If ctx ends first, the look continues.
func (k *Kubelet) lookNow(ctx context.Context) error {
	select {
	case look := <-k.look(ctx, 0):
		return look.Err
	case <-ctx.Done():
		return errors.New("the API server did not confirm the kubelet's credential in time")
	}
}

// refresh is a look: it brings k.known up to date with the kubeconfig. If the kubeconfig is unchanged or cannot be used, refresh asks the API server
// again which node the credential in use belongs to.
//
// The error says what is wrong with the kubeconfig, or with the client in use. Even then, that client stays in use.
func (k *Kubelet) refresh(ctx context.Context) error {
	inUse := k.known.Load()
	newest, failure := k.load()
	isNew := failure == nil && (inUse == nil || newest != inUse.Client)
	if isNew {
		if failure = k.confirm(ctx, newest); failure == nil {
			return nil
		}
	}
	if inUse == nil { // No client has worked yet.
		return failure
	}
	return errors.Join(failure, k.confirm(ctx, inUse.Client))
}

// confirm asks the API server which node the credential of c belongs to. If that is a node, confirm makes c the client in use. From then on, requests
// of k.client, which callers of Identity keep, go through c: see following.
func (k *Kubelet) confirm(ctx context.Context, c *Client) error {
	node, err := c.node(ctx)
	if err != nil {
		return err
	}
	if before := k.known.Swap(&known{c, node}); before != nil && before.Client != c { // The client before is no longer in use.
		go utilnet.CloseIdleConnectionsFor(before.through) // It may wait for a lock of the old transport.
	}
	return nil
}

// following is the transport of Kubelet.client. It sends each request through the client in use: to that client's API server, with its credential.
type following struct{ *Kubelet }

// RoundTrip implements http.RoundTripper. After a failed or refused request, it starts a look: the kubeconfig may have changed.
func (f following) RoundTrip(request *http.Request) (*http.Response, error) {
	inUse := f.known.Load() // not nil: only Identity hands out the client
	aimed := utilnet.CloneRequest(request)
	target := *request.URL // CloneRequest shares the URL with request.
	target.Scheme, target.Host, target.User = inUse.address.Scheme, inUse.address.Host, inUse.address.User
	target.Path = strings.TrimSuffix(inUse.address.Path, "/") + request.URL.Path
	aimed.URL, aimed.Host = &target, ""
	response, err := inUse.through.RoundTrip(aimed)
	failed := err != nil && !errors.Is(err, context.Canceled) // Canceled: the caller has ended the request.
	refused := err == nil && (response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden)
	if failed || refused {
		f.look(request.Context(), lookPause) // KeepWarm reports what keeps failing.
	}
	return response, err
}

// document returns the path and the text of the kubeconfig. If there is none, the error is an ErrNotYet.
func (k *Kubelet) document() (path string, document []byte, err error) {
	if k.opts.Document != nil {
		return "in memory", k.opts.Document, nil
	}
	paths := SearchPaths
	if k.opts.Kubeconfig != "" {
		paths = []string{k.opts.Kubeconfig}
	}
	for _, path := range paths {
		path = filepath.Join(k.opts.Root, path)
		document, err := text.ReadFile(path, text.File)
		if err == nil {
			return path, document, nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // A kubeconfig that cannot be read must not make nth use the next path.
			return "", nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
	}
	return "", nil, fmt.Errorf("%w: there is no kubeconfig at %s", ErrNotYet, strings.Join(paths, ", "))
}

// load returns a client for the kubeconfig as it is now, and sends no request. If neither the kubeconfig nor a file that it names has changed, that
// is k.newest. Otherwise load makes a client, and keeps it as k.newest.
func (k *Kubelet) load() (*Client, error) {
	path, document, err := k.document()
	if err != nil {
		return nil, err
	}
	failed := func(err error) (*Client, error) { return nil, fmt.Errorf("reading the kubeconfig %s: %w", path, err) }
	if len(bytes.TrimSpace(document)) == 0 {
		return failed(fmt.Errorf("the file is empty: %w", ErrNotYet))
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

// Labels reads the labels of the identity's Node from the API server.
func (id Identity) Labels(ctx context.Context) (map[string]string, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %q: %w", id.Node, err)
	}
	return node.Labels, nil
}

const (
	// JoinPause is the longest pause between two looks until the first one succeeds: a notice may be waiting when a node joins its cluster.
	JoinPause = 500 * time.Millisecond
	// failurePause is its longest pause after a later failure: the identity must work before the next notice.
	failurePause = 10 * time.Second
)

// KeepWarm makes a look at once, and then one after about each interval, until ctx ends. So nth finds a replaced kubeconfig, and a connection, a token
// and a certificate are ready when a drain needs them. After a failure, the pause is shorter.
//
// KeepWarm calls report after each look, in this goroutine, with the identity in use, which has no Client before the first look that succeeds. The
// error is that of the look; nil means that the identity works.
func (k *Kubelet) KeepWarm(ctx context.Context, interval time.Duration, report func(Identity, error)) {
	for {
		err := k.lookNow(ctx)
		if ctx.Err() != nil {
			return
		}
		id, pause := k.inUse(), interval
		report(id, err)
		switch {
		case id.Client == nil:
			pause = min(interval, JoinPause)
		case err != nil:
			pause = min(interval, failurePause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait.Jitter(pause*9/10, 2.0/9)): // a tenth more or less, so that the nodes of a cluster do not ask all at once
		}
	}
}
