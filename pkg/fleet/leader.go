package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/nth-project/nth/pkg/kube"
)

// LeaseNamespace is the namespace of the Lease, and has nothing else in it: RBAC cannot limit the right to create objects to some names.
const LeaseNamespace = "nth-queue"

const (
	// leaseDuration is how long the Lease must not have changed before a standby takes it. renewDeadline is how long the leader tries to renew the
	// Lease. retryPeriod is the pause between requests of either; client-go makes it up to 2.2 times as long for a standby. So a standby leads
	// within 20 s of a kill, and within 3 s of an orderly end.
	leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, time.Second
	// fenceMargin is how long before the end of leaseDuration the leader stops writing. Requests that are under way end within this time.
	fenceMargin = 2 * time.Second
	// attemptTimeout bounds one request to the API server.
	attemptTimeout = 8 * time.Second
)

// leadership is this process's part in the election of the leader, by client-go.
type leadership struct {
	lock *observedLock

	mu      sync.Mutex
	elector *leaderelection.LeaderElector // of the current campaign; nil before the first
	leading context.Context               // ends when the Lease is lost; nil before this process is elected
}

// newLeadership returns a leadership that does not stand for election yet. lease is the name of the Lease, and identity this process's in the Lease.
func newLeadership(client kubernetes.Interface, lease, identity string) *leadership {
	return &leadership{lock: &observedLock{Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: LeaseNamespace, Name: lease}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}}
}

// campaign stands for election until ctx ends. Each time that this process is elected, campaign calls lead. The context of lead ends when
// the Lease is lost or ctx ends. campaign stands for election again only when lead has returned. When ctx has ended, campaign releases the Lease, so
// that another process leads at once. An error means that the election cannot be prepared.
func (l *leadership) campaign(ctx context.Context, lead func(ctx context.Context)) error {
	for ctx.Err() == nil {
		if err := l.stand(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

// stand stands for election once, and returns when the Lease is lost or ctx has ended. client-go renews the Lease until lead has returned, also
// after ctx has ended: lead needs the Lease to end its work.
func (l *leadership) stand(ctx context.Context, lead func(ctx context.Context)) error {
	elected := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: l.lock.Describe(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { elected <- leading },
			OnStoppedLeading: func() {}, // client-go requires it; the context of OnStartedLeading ends then.
		},
	})
	if err != nil {
		return fmt.Errorf("configuring the leader election with the Lease %s: %w", l.lock.Describe(), err)
	}
	l.mu.Lock()
	l.elector = elector
	l.mu.Unlock()
	electing, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	defer stop()
	var election sync.WaitGroup
	election.Go(func() { elector.Run(electing) })
	select {
	case leading := <-elected:
		l.mu.Lock()
		l.leading = leading
		l.mu.Unlock()
		working, end := context.WithCancel(leading) // ends with the Lease or with ctx
		detach := context.AfterFunc(ctx, end)
		lead(working)
		detach()
		end()
	case <-ctx.Done(): // Whether this process was elected all the same shows below.
	}
	stop()
	election.Wait()
	if ctx.Err() != nil && elector.IsLeader() { // It may have been elected at the moment when ctx ended.
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
		defer cancel()
		l.release(releasing)
	}
	return nil
}

// release gives up the Lease after all work has ended. If that fails, the Lease runs out. client-go's ReleaseOnCancel is not used: it also releases a
// Lease that cannot be renewed, before the work has ended.
func (l *leadership) release(ctx context.Context) {
	now, _, err := l.lock.Get(ctx)
	if err != nil || now.HolderIdentity != l.lock.Identity() {
		return
	}
	at := metav1.Now()
	_ = l.lock.Update(ctx, resourcelock.LeaderElectionRecord{ // The lock keeps the error for Status.
		LeaderTransitions: now.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: at, AcquireTime: at, // The API server refuses 0 seconds.
	})
}

// errNotLeading is why the fence refuses a write.
var errNotLeading = errors.New("this process does not lead")

// holds returns nil while this process is sure to hold the Lease, and errNotLeading otherwise. It counts leaseDuration from when the last renewal was
// sent. client-go counts from the answer, and a standby may count from any moment between the two.
func (l *leadership) holds() error {
	l.mu.Lock()
	leading := l.leading
	l.mu.Unlock()
	isElected := leading != nil && leading.Err() == nil
	mayHaveRunOut := l.lock.age() > leaseDuration-fenceMargin
	if !isElected || mayHaveRunOut {
		return errNotLeading
	}
	return nil
}

// leader returns the identity of the leader, as this process last saw it in the Lease; "" if it has not seen one.
func (l *leadership) leader() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.elector == nil {
		return ""
	}
	return l.elector.GetLeader()
}

// observedLock is client-go's lock on the Lease. It also remembers when the Lease was last written, and why it cannot be read or written.
type observedLock struct {
	resourcelock.Interface

	mu        sync.Mutex
	renewed   time.Time // when the last successful write began
	err       error     // why the Lease cannot be read or written; nil if it can
	since     time.Time // when err was set first
	lastError time.Time // when a request failed last
}

// note notes the result of a request for the Lease. A read that succeeds does not end the trouble of failed writes at once: a process
// may have the right to read the Lease, but not to write it.
func (o *observedLock) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	switch {
	case err != nil && !apierrors.IsConflict(err): // With a conflict, another process was faster: the Lease can be read.
		if o.err == nil {
			o.since = now
		}
		o.err, o.lastError = err, now
	case now.Sub(o.lastError) > renewDeadline: // A leader writes more often, so this process only has to read.
		o.err = nil
	}
}

// noteWrite is note for a write that began at a time.
func (o *observedLock) noteWrite(began time.Time, err error) error {
	if err != nil {
		o.note(err)
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.renewed, o.err = began, nil
	return nil
}

// Get implements resourcelock.Interface. A Lease that does not exist yet is no trouble.
func (o *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := o.Interface.Get(ctx)
	if kube.NotFound(err) {
		o.note(nil)
	} else {
		o.note(err)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (o *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	return o.noteWrite(began, o.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (o *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	return o.noteWrite(began, o.Interface.Update(ctx, record))
}

// age returns how long ago the last successful write of the Lease began. It is the longer time of two clocks: only the wall clock continues while a
// machine is suspended, and only the monotonic clock cannot be set back.
func (o *observedLock) age() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	return max(now.Sub(o.renewed), now.Round(0).Sub(o.renewed.Round(0))) // Round(0) drops the monotonic clock's reading.
}

// trouble returns why the Lease cannot be read or written, and since when. If it can, why is nil, and since has no meaning.
func (o *observedLock) trouble() (since time.Time, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, o.err
}

// fence refuses all requests but GET while this process does not hold the Lease. A process that was frozen does not notice at once that it has lost
// the Lease. Without a fence, it would write at the same time as the next leader.
type fence struct {
	next http.RoundTripper
	lead *leadership
}

var _ utilnet.RoundTripperWrapper = fence{}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper, by which client-go finds the transport that has the connections.
func (f fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper. The error is errNotLeading if the fence refuses the request.
func (f fence) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		if err := f.lead.holds(); err != nil {
			return nil, err
		}
	}
	return f.next.RoundTrip(r)
}

// fenceWrites puts a fence before the writes of a client. All API groups of a client share one http.Client, so to change that of CoreV1 is enough. A
// client without an http.Client, as tests have, stays as it is.
func (l *leadership) fenceWrites(client kubernetes.Interface) {
	if api, ok := client.CoreV1().RESTClient().(*rest.RESTClient); ok && api != nil && api.Client != nil {
		next := api.Client.Transport
		if next == nil {
			next = http.DefaultTransport
		}
		api.Client.Transport = fence{next: next, lead: l}
	}
}
