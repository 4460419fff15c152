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

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/state"
)

// LeaseNamespace is the namespace of the Lease. It has nothing else in it, because RBAC cannot limit the right to make something to some names.
const LeaseNamespace = "nth-queue"

const (
	// leaseDuration is how long a standby waits after it has last seen the Lease change, renewDeadline how long the leader tries to
	// renew it, and retryPeriod how often either asks; client-go makes that up to 2.2 times as long for a standby. So a standby leads within
	// 20 s of a kill, and 3 s of an orderly end.
	leaseDuration, renewDeadline, retryPeriod = 15 * time.Second, 10 * time.Second, time.Second
	// fenceMargin is how long before leaseDuration is over the leader stops to write. Requests that are under way end within it.
	fenceMargin = 2 * time.Second
	// attemptTimeout bounds one request to the API server.
	attemptTimeout = 8 * time.Second
)

// leadership is one process's part in the election of the leader.
type leadership struct {
	lock *observedLock

	mu      sync.Mutex
	elector *leaderelection.LeaderElector // of the current campaign; nil before the first
	leading context.Context               // ends when the Lease is lost; nil before this process is elected
}

func newLeadership(client kubernetes.Interface, lease, identity string) *leadership {
	return &leadership{lock: &observedLock{Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: LeaseNamespace, Name: lease}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}}
}

// campaign stands for election until ctx ends. Each time that this process is elected, it calls lead with a context that ends when the
// Lease is lost, and stands again only when lead has returned. At the end the Lease is released, so that another process leads at once.
func (l *leadership) campaign(ctx context.Context, lead func(ctx context.Context)) error {
	for ctx.Err() == nil {
		if err := l.stand(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

// stand stands for election once. The election continues, and the Lease is renewed, until lead has returned.
func (l *leadership) stand(ctx context.Context, lead func(ctx context.Context)) error {
	elected := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: l.lock.Describe(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { elected <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("preparing the election of the leader: %w", err)
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
		working, end := context.WithCancel(leading)
		release := context.AfterFunc(ctx, end)
		lead(working)
		release()
		end()
	case <-ctx.Done():
	}
	held := l.holds() == nil
	stop()
	election.Wait()
	if ctx.Err() == nil || !held {
		return nil
	}
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	l.release(releasing)
	return nil
}

// release gives the Lease up. client-go's own release would also come when the Lease cannot be renewed, before the work has ended. If it
// fails, the Lease runs out.
func (l *leadership) release(ctx context.Context) {
	now, _, err := l.lock.Get(ctx)
	if err != nil || now.HolderIdentity != l.lock.Identity() {
		return
	}
	at := metav1.Now()
	_ = l.lock.Update(ctx, resourcelock.LeaderElectionRecord{ // observed by the lock
		LeaderTransitions: now.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: at, AcquireTime: at,
	})
}

// errNotLeading is why a write is refused.
var errNotLeading = errors.New("this process does not lead")

// holds returns nil while this process is sure to hold the Lease. A standby may count from the moment at which the API server has written
// it, which is not before it was asked to; an elector counts from the answer.
func (l *leadership) holds() error {
	l.mu.Lock()
	leading := l.leading
	l.mu.Unlock()
	if leading == nil || leading.Err() != nil || l.lock.age() > leaseDuration-fenceMargin {
		return errNotLeading
	}
	return nil
}

// fencedListener reports while this process holds the Lease: another one reports after that.
type fencedListener struct {
	agent.Listener
	lead *leadership
}

// OnTransition implements agent.Listener.
func (l fencedListener) OnTransition(t state.Transition) {
	if l.lead.holds() == nil {
		l.Listener.OnTransition(t)
	}
}

// leader is the identity of the leader as it was last seen; "" if that is not known.
func (l *leadership) leader() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.elector == nil {
		return ""
	}
	return l.elector.GetLeader()
}

// observedLock remembers when the Lease was last asked for, and why it can not be read or written.
type observedLock struct {
	resourcelock.Interface

	mu      sync.Mutex
	renewed time.Time // when the last write that has succeeded began
	err     error
	since   time.Time
	last    time.Time // of the errors
}

// note notes the result of a read, or of a write that began at that time. Who can read the Lease, but not write it, has trouble, unless
// there was no need to write for a while.
func (o *observedLock) note(err error, writing time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	now, written := time.Now(), !writing.IsZero()
	switch {
	case err == nil && written:
		o.renewed, o.err = writing, nil
	case err == nil || kube.NotFound(err) && !written || apierrors.IsConflict(err):
		if now.Sub(o.last) > renewDeadline {
			o.err = nil
		}
	default:
		if o.err == nil {
			o.since = now
		}
		o.err, o.last = err, now
	}
	return err
}

// Get implements resourcelock.Interface.
func (o *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := o.Interface.Get(ctx)
	return record, raw, o.note(err, time.Time{})
}

// Create implements resourcelock.Interface.
func (o *observedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	return o.note(o.Interface.Create(ctx, record), began)
}

// Update implements resourcelock.Interface.
func (o *observedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	return o.note(o.Interface.Update(ctx, record), began)
}

// age is how long ago the Lease was last asked for with success, by the clock that says more: only the wall clock continues while a machine is
// suspended, and only the other one cannot be set back.
func (o *observedLock) age() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	return max(now.Sub(o.renewed), now.Round(0).Sub(o.renewed.Round(0)))
}

// trouble is why the Lease can not be read or written, and since when; nil if it can.
func (o *observedLock) trouble() (time.Time, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return time.Time{}, nil
	}
	return o.since, o.err
}

// fence refuses to write while this process does not hold the Lease. A process that was frozen, and continues before it notices, would write
// together with the next leader.
type fence struct {
	next http.RoundTripper
	lead *leadership
}

var _ utilnet.RoundTripperWrapper = fence{}

// WrappedRoundTripper lets client-go find the connections.
func (f fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper.
func (f fence) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		if err := f.lead.holds(); err != nil {
			return nil, err
		}
	}
	return f.next.RoundTrip(r)
}

// fenceWrites puts a fence before the writes of a client. All groups of a client share one http.Client.
func (l *leadership) fenceWrites(client kubernetes.Interface) {
	if api, is := client.CoreV1().RESTClient().(*rest.RESTClient); is && api != nil && api.Client != nil {
		next := api.Client.Transport
		if next == nil {
			next = http.DefaultTransport
		}
		api.Client.Transport = fence{next: next, lead: l}
	}
}
