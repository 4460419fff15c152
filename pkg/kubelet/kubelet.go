// Package kubelet is the borrowed identity: it turns the kubelet's own kubeconfig into a Kubernetes client, and says
// whose node that is.
//
// The node's name comes from the credential. Every authenticated user may ask the API server who it is, and a kubelet
// is told "system:node:<name>"; hostnames, DNS and cloud metadata agree with that on some nodes only. A credential that
// belongs to no node is an error, since nothing that nth does would be right with it.
//
// The kubeconfig is the kubelet's, so nth follows it: one that is not there yet (the kubelet has not joined) is
// ErrNotYet, a state to wait in; one that was replaced is loaded again and taken over once the API server has said who
// it is; one that vanished or broke does not take away an identity that works. The same holds for the certificate authority
// that it names, and for the proxy. Below the kubeconfig, client-go follows on its own: a rotated client certificate is read at the next connection, which is made within five minutes, a token
// file is read every minute, and an exec plugin runs when its token has expired. KeepWarm uses the identity now and
// then, so that a drain does not begin with any of that.
//
// client-go answers for all the formats; what a kubelet's identity may do is written in docs/design.md.
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

// SearchPaths are the places of a kubelet's kubeconfig, in the order in which they are tried: Amazon's and Ubuntu's
// EKS images, Bottlerocket, kubeadm.
var SearchPaths = []string{
	"/var/lib/kubelet/kubeconfig",
	"/etc/kubernetes/kubelet/kubeconfig",
	"/etc/kubernetes/kubelet.conf",
}

// ErrNotYet tells that the kubelet has no credential yet: it is worth waiting for.
var ErrNotYet = errors.New("the kubelet has not joined its cluster yet")

// nodeUser begins the user name of every kubelet; the rest is its node's name.
const nodeUser = "system:node:"

// errNoNode is why a credential is of no use.
var errNoNode = errors.New("which is not a node (" + nodeUser + "<name>)")

// patience is how long the API server, and an exec plugin that has to run first, may take for one answer.
const patience = 10 * time.Second

// lookLimit is how long a look at the kubeconfig may take until who waits for it is told so: that of the API server, and some more
// for the proxy. There is no way to end the read of a file on a server that is gone, so the look itself goes on, and there is no
// other beside it.
const lookLimit = 2 * patience

// Options say where the identity is found.
type Options struct {
	// Kubeconfig is the file's path; "" is the first of SearchPaths that exists.
	Kubeconfig string
	// Root is where the host's file system begins, "" for "/". Kubeconfig and the files that it names lie below it.
	Root string
	// Launcher begins the command line with which an exec plugin is run that lies below Root; the plugin's own follows.
	// Without it, the plugin is run as it is written.
	Launcher []string
	// Read, if set, gives a kubeconfig that is in no file, and tells where it is from. An error that is an fs.ErrNotExist
	// is an ErrNotYet. Kubeconfig has no meaning then.
	Read func(ctx context.Context) (from string, text []byte, err error)
	// Token, if set, makes the tokens for an EKS cluster, and tells when each expires, in place of the exec plugin. The
	// cluster and the region, "" for the instance's own, are those that the plugin would be called with.
	Token func(ctx context.Context, cluster, region string) (token string, expires time.Time, err error)
	// Fallback has the plugin run all the same where it does more than to make such a token, and where that fails or the
	// token is refused.
	Fallback bool
	// Proxy, if set, finds the proxy through which the API server is reached. It is asked now and then; an error leaves
	// what was found before.
	Proxy func(ctx context.Context) (Proxy, error)
	// UserAgent is how the API server's audit log names nth, as in "nth/v1.0.0".
	UserAgent string
	// Requested, if set, is called after each request to the API server, from several goroutines at once, with its HTTP
	// method and the status of the answer; 0 is none.
	Requested func(method string, status int)
}

// Identity is a client with the rights of one node's kubelet. Its requests have no rate limit and no timeout of their
// own: their contexts have.
type Identity struct {
	Client kubernetes.Interface
	// Node is the name of the node.
	Node string
	// Source is the kubeconfig's path, or where else it is from, Server the API server's address, and Credential says in a
	// few words what proves the identity, as in "the exec plugin aws".
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
	// looking is the look at the kubeconfig that is under way, nil if there is none.
	looking *look

	// These are the look's: the kubeconfig of known, the one that was loaded since and waits to be confirmed, and the proxy.
	current, next loaded
	proxy         Proxy
	proxied       time.Time // when it was asked for
}

// look is one look at the kubeconfig; err holds when done is closed, and is what kept known from being brought up to date.
type look struct {
	began time.Time
	done  chan struct{}
	err   error
}

// loaded is a client, made from a kubeconfig and a proxy with that content. The zero value is none.
type loaded struct {
	apiserver.Client
	proxy   Proxy // that the client goes through
	content [sha256.Size]byte
	// authority is the file of the cluster's certificate authority, "" if there is none, and trusted what was read from it.
	authority string
	trusted   []byte
	// refusal is why it was not confirmed, and again when it is asked about once more.
	refusal error
	again   time.Time
	pause   time.Duration
}

func (l loaded) madeFrom(source string, content [sha256.Size]byte) bool {
	return l.Interface != nil && l.Source == source && l.content == content && l.trustsAsBefore()
}

// trustsAsBefore tells whether the file of the authority has the content that the client was made with. One that cannot be read
// any more, or is no file, takes nothing away.
func (l loaded) trustsAsBefore() bool {
	if l.authority == "" || notAFile(l.authority) != nil {
		return true
	}
	text, err := os.ReadFile(l.authority)
	return err != nil || bytes.Equal(text, l.trusted)
}

// New returns a Kubelet that has not looked for anything yet.
func New(opts Options) *Kubelet { return &Kubelet{opts: opts} }

// Identity returns the identity. It costs no request while the kubeconfig is the same as before, and no time once there is
// one: another kubeconfig is confirmed beside it, and taken when that is done. The error is an ErrNotYet where waiting helps.
func (k *Kubelet) Identity(ctx context.Context) (Identity, error) {
	known, looking := k.begin(ctx)
	if known.Client != nil {
		return known, nil
	}
	if err := looking.wait(ctx); err != nil {
		return Identity{}, err
	}
	return k.identity(), nil
}

func (k *Kubelet) identity() Identity {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known
}

// begin looks at the kubeconfig, unless that is being done, and returns what is known so far.
func (k *Kubelet) begin(ctx context.Context) (Identity, *look) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.looking == nil {
		l := &look{began: time.Now(), done: make(chan struct{})}
		k.looking = l
		go func() {
			l.err = k.refresh(context.WithoutCancel(ctx))
			k.mu.Lock()
			defer k.mu.Unlock()
			k.looking = nil
			close(l.done)
		}()
	}
	return k.known, k.looking
}

func (l *look) wait(ctx context.Context) error {
	late := time.NewTimer(time.Until(l.began.Add(lookLimit)))
	defer late.Stop()
	select {
	case <-l.done:
		return l.err
	case <-late.C:
		return fmt.Errorf("looking at the kubeconfig takes more than %s: it, or a file that it names, cannot be read to its end", lookLimit)
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
	content := sha256.Sum256(append(fmt.Appendf(nil, "%q %q %q\n", k.proxy.HTTPS, k.proxy.HTTP, k.proxy.None), text...))
	if k.current.madeFrom(source, content) {
		k.next = loaded{}
		return nil
	}
	if !k.next.madeFrom(source, content) {
		next, err := k.load(source, text)
		if err != nil {
			return err
		}
		next.content = content
		k.next = next
	}
	known := k.identity()
	if known.Client != nil && time.Now().Before(k.next.again) {
		return k.next.refusal
	}
	node, err := whose(ctx, k.next.Client)
	if errors.Is(err, errNoNode) && k.next.Doubt() {
		node, err = whose(ctx, k.next.Client)
	}
	if err != nil {
		k.next.refusal, k.next.pause = err, min(max(2*k.next.pause, time.Second), coldPause)
		k.next.again = time.Now().Add(k.next.pause)
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

// read returns the content of the kubeconfig, and its path or where else it is from.
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

// notAFile finds fault with what can be read for ever without a word, such as a named pipe. What cannot be looked at is left to
// those who read it.
func notAFile(path string) error {
	found, err := os.Stat(path)
	if err == nil && found.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0 {
		return fmt.Errorf("%s is no file", path)
	}
	return nil
}

// onHost turns an absolute path on the host into one that can be opened here.
func (k *Kubelet) onHost(path string) string {
	if k.opts.Root == "" || !filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(k.opts.Root, path)
}

// whose asks the API server which node's kubelet it takes the client for.
func whose(ctx context.Context, client apiserver.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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

// Labels asks for the labels of the node.
func (id Identity) Labels(ctx context.Context) (map[string]string, error) {
	node, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the labels of node %q: %w", id.Node, err)
	}
	return node.Labels, nil
}

// coldPause is the longest pause after a round that failed: what is cold is wanted warm before the next notice.
const coldPause = 10 * time.Second

// KeepWarm uses the identity about every so often until ctx ends, beginning at once, so that a connection, a token and
// a certificate are ready when they are needed and a replaced kubeconfig is noticed. After a round that failed it looks
// again soon. tell hears how each round ended, nil meaning warm; it is told from this goroutine.
func (k *Kubelet) KeepWarm(ctx context.Context, every time.Duration, tell func(error)) {
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
		pause := every
		if err != nil {
			pause = min(every, coldPause)
		}
		timer.Reset(jitter(pause))
	}
}

// warm makes one cheap request with the identity.
func (k *Kubelet) warm(ctx context.Context) error {
	_, looking := k.begin(ctx)
	trouble := looking.wait(ctx) // nobody waits for this round
	id := k.identity()
	if id.Client == nil {
		return trouble
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Version "0" is answered from the API server's memory. A node that is not there yet, or no more, is an answer, too.
	_, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{ResourceVersion: "0"})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading node %q with the credential in %s: %w", id.Node, id.Source, apiserver.OneLine(err))
	}
	return trouble
}

// jitter spreads a pause by a tenth to either side, so that a fleet's nodes do not ask in step.
func jitter(pause time.Duration) time.Duration { return wait.Jitter(pause*9/10, 2.0/9) }
