package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/nth-project/nth/pkg/drain"
)

// leaseTerm is the time for which this process holds one Lease, whose name is used for that time only. Everything that is taken in a term
// ends with it. A dry run is one term, without a Lease and a name.
type leaseTerm struct {
	// ctx ends with the term. leased ends only if the Lease is lost: at an orderly end, writes that have begun are finished.
	ctx, leased context.Context
	process     string // the name of the Lease
	// sessions are those that have begun, and all other goroutines that write to the cluster.
	sessions sync.WaitGroup
	// orphans are the Nodes with a claim of this process but without a session, and since when, or when removing the claim was last tried.
	// Only serve's goroutine uses it.
	orphans map[string]time.Time
}

// terms begins one term after another until ctx ends. begun is called in each.
func (f *Fleet) terms(ctx context.Context, begun func()) {
	if f.opts.DryRun {
		f.serve(&leaseTerm{ctx: ctx, leased: context.WithoutCancel(ctx)}, begun)
		return
	}
	for ctx.Err() == nil {
		asked := time.Now()
		lease, err := f.leases.create(ctx, f.opts.Host)
		f.noteLease(ctx, err)
		if err != nil {
			drain.Await(ctx, nil, renewalAgain)
			continue
		}
		f.serveWithLease(ctx, lease, asked, begun)
	}
}

// serveWithLease runs a term with a Lease that was requested at that time.
func (f *Fleet) serveWithLease(ctx context.Context, lease *coordination.Lease, asked time.Time, begun func()) {
	leased, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	held, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &leaseTerm{ctx: held, leased: leased, process: lease.Name}
	// The Lease is renewed until the last drain has stopped, also after the end of ctx.
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() {
		if err := f.leases.keepRenewed(keeping, lease, asked); err != nil {
			f.noteLease(ctx, err)
			lose(errLeaseLost)
			stop(errLeaseLost)
		}
	})
	f.serve(t, begun)
	end()
	keeper.Wait()
	if err := f.leases.release(context.WithoutCancel(ctx), lease); err != nil {
		f.opts.Log.Debugf("ending the Lease %s: %s", lease.Name, err)
	}
}

// noteLease takes in why this process has no Lease, or nil, and logs changes.
func (f *Fleet) noteLease(ctx context.Context, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.leaseError
	switch {
	case ctx.Err() != nil:
	case err != nil && before == nil:
		f.leaseError, f.leaseErrorSince = err, time.Now()
		f.opts.Log.Warnf("paused without a Lease: %s", err)
	case err != nil:
		f.leaseError = err
	case before != nil:
		f.leaseError = nil
		f.opts.Log.Info("holding a Lease again; receiving messages")
	}
}

// Paused reports whether no messages are to be received, because this process has no Lease. It implements sqs.Options.Paused.
func (f *Fleet) Paused() bool {
	t := f.term.Load()
	return t == nil || t.ctx.Err() != nil
}

// LeaseError returns why this process has no Lease, so that it drains nothing; nil if it has one, or has not asked for one yet.
func (f *Fleet) LeaseError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaseError
}

// serve starts waiting sessions until the term ends. Then it returns the messages of the others, and waits until all drains have stopped.
func (f *Fleet) serve(t *leaseTerm, begun func()) {
	f.term.Store(t)
	begun()
	t.sessions.Go(func() { f.runMaintenance(t.ctx) })
	ticks := time.NewTicker(dispatchInterval)
	defer ticks.Stop()
	for t.ctx.Err() == nil {
		f.dispatch(t)
		select {
		case <-t.ctx.Done():
		case <-f.changed:
		case <-ticks.C: // These go through all Nodes, which is too much for each change in a storm.
			f.checkClaims(t)
			f.endOrphans(t)
		}
	}
	f.returnWaiting(func(t *task) { t.retryAfter(0) }) // Other processes can continue at once.
	t.sessions.Wait()
}

// finishing returns a context for work that is to be finished at an orderly end of ctx. It ends early only if the claim or the Lease is
// lost, because the node may be another process's then.
func (t *leaseTerm) finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	kept, end := context.WithCancelCause(t.leased)
	forget := context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); isClaimLost(cause) {
			end(cause)
		}
	})
	return kept, func() {
		forget()
		end(nil)
	}
}

// isClaimLost reports whether a session has ended because another process may have its node.
func isClaimLost(cause error) bool {
	return errors.Is(cause, errClaimLost) || errors.Is(cause, errLeaseLost)
}

const (
	// LeaseNamespace is the namespace of the Leases of all nth-queue processes. It has nothing else in it, because RBAC cannot limit the right
	// to create Leases to some names: in kube-system it would include the Leases of the control plane.
	LeaseNamespace = "nth-queue"
	// leasePrefix is the prefix of the names of these Leases.
	leasePrefix = "nth-queue-"
)

const (
	// leaseDuration is how long other processes respect a Lease after they have last seen it change. It equals the default visibility timeout
	// of messages: the node and the messages of a process that was killed become free at the same time.
	leaseDuration = 20 * time.Second
	// renewDeadline is how long a process goes on without a successful renewal. The rest of leaseDuration is for its drains to stop.
	renewDeadline = 14 * time.Second
	// renewal is how often a Lease is renewed and the others are listed; renewalAgain is the same after a failure, and while something waits
	// for the list.
	renewal, renewalAgain = 4 * time.Second, time.Second
	// renewalTimeout bounds one request about Leases.
	renewalTimeout = 5 * time.Second
	// cleanedAtOnce is how many expired Leases are deleted after one list.
	cleanedAtOnce = 10
)

// errLeaseLost means that this process has lost its Lease, so that other processes may have its nodes.
var errLeaseLost = errors.New("the Lease of this process was not renewed in time")

// leases watches over the Leases of all nth-queue processes. A process is alive as long as its Lease exists: it deletes the Lease when it
// ends, and other processes do if it was killed. No two clocks are compared: whoever has not seen a Lease change for its whole duration
// deletes exactly that version of it, and the process itself gives up before that.
type leases struct {
	client kubernetes.Interface
	// dryRun deletes nothing.
	dryRun bool
	// changed is called when another process has ended or the slots may have changed.
	changed func()

	mu   sync.Mutex
	seen map[string]leaseVersion // by process
	// ended are processes that are known to have ended. Names are never reused.
	ended map[string]bool
	// asked are those that hasEnded was asked about since the last list, and that were not in it.
	asked map[string]bool
	// lookDue is set if something waits for the next list.
	lookDue bool
	// slots is the Lease slotsLease in the last list, which was requested at looked; nil if it was not in it.
	slots  *coordination.Lease
	looked time.Time
}

// lookSoon has the Leases listed soon.
func (l *leases) lookSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookDue = true
}

// leaseVersion is one version of a Lease, and since when this process has known it.
type leaseVersion struct {
	uid     types.UID
	version string
	lasts   time.Duration
	since   time.Time
}

// maxEnded bounds how many ended processes are remembered.
const maxEnded = 1000

func newLeases(client kubernetes.Interface, dryRun bool, changed func()) *leases {
	return &leases{client: client, dryRun: dryRun, changed: changed, seen: map[string]leaseVersion{}, ended: map[string]bool{}, asked: map[string]bool{}}
}

func (l *leases) api() coordinationclient.LeaseInterface {
	return l.client.CoordinationV1().Leases(LeaseNamespace)
}

// hasEnded reports whether a process is known to have ended. It makes no request: the next list answers for a process that is not known.
func (l *leases) hasEnded(process string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended[process] {
		return true
	}
	if _, there := l.seen[process]; !there {
		l.asked[process], l.lookDue = true, true
	}
	return false
}

// run lists the Leases again and again until ctx ends.
func (l *leases) run(ctx context.Context) {
	for last := (time.Time{}); ; {
		l.mu.Lock()
		due := l.lookDue || time.Since(last) >= renewal
		l.mu.Unlock()
		if due {
			last = time.Now()
			l.look(ctx)
		}
		if !drain.Await(ctx, nil, renewalAgain) {
			return
		}
	}
}

// look lists the Leases once and deletes those of processes that have died. A failure changes nothing.
func (l *leases) look(ctx context.Context) {
	l.mu.Lock()
	asked := l.asked
	l.asked, l.lookDue = map[string]bool{}, false
	l.mu.Unlock()
	attempt, cancel := context.WithTimeout(ctx, renewalTimeout)
	began := time.Now()
	list, err := l.api().List(attempt, metav1.ListOptions{})
	cancel()
	if err != nil {
		l.mu.Lock()
		maps.Copy(l.asked, asked)
		l.mu.Unlock()
		return
	}
	for process, old := range l.update(list.Items, asked, began) {
		l.deleteEnded(ctx, process, old)
	}
}

// update takes in a list of Leases that was requested at that time, and which processes were asked about before. It returns some expired
// Leases.
func (l *leases) update(there []coordination.Lease, asked map[string]bool, began time.Time) (old map[string]leaseVersion) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.seen
	l.seen, l.slots, l.looked, old = map[string]leaseVersion{}, nil, began, map[string]leaseVersion{}
	for i := range there {
		lease := &there[i]
		if lease.Name == slotsLease {
			l.slots = lease
			l.changed()
		}
		if !strings.HasPrefix(lease.Name, leasePrefix) {
			continue
		}
		now := leaseVersion{uid: lease.UID, version: lease.ResourceVersion, lasts: durationOf(lease), since: time.Now()}
		if known, there := before[lease.Name]; there && known.uid == now.uid && known.version == now.version {
			now.since = known.since
		}
		l.seen[lease.Name] = now
		if time.Since(now.since) >= now.lasts && len(old) < cleanedAtOnce {
			old[lease.Name] = now
		}
	}
	for process := range before {
		l.noteEnded(process)
	}
	for process := range asked {
		l.noteEnded(process)
	}
	return old
}

// noteEnded takes in that a process has ended if its Lease does not exist. l.mu is held.
func (l *leases) noteEnded(process string) {
	if _, there := l.seen[process]; there || l.ended[process] {
		return
	}
	if len(l.ended) >= maxEnded {
		clear(l.ended)
	}
	l.ended[process] = true
	l.changed()
}

// durationOf is how long a Lease is valid without a change.
func durationOf(lease *coordination.Lease) time.Duration {
	if s := lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return leaseDuration
}

// deleteEnded deletes an expired Lease, unless its process renews it at this moment.
func (l *leases) deleteEnded(ctx context.Context, process string, old leaseVersion) {
	var err error
	if !l.dryRun {
		err = l.delete(ctx, process, metav1.Preconditions{UID: &old.uid, ResourceVersion: &old.version})
	}
	if err != nil && !drain.NotFound(err) {
		return // It was renewed, or the next list tries again.
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, process)
	l.noteEnded(process)
}

func (l *leases) delete(ctx context.Context, process string, as metav1.Preconditions) error {
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	return l.api().Delete(ctx, process, metav1.DeleteOptions{Preconditions: &as})
}

// create creates the Lease of a new process.
func (l *leases) create(ctx context.Context, host string) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	made, err := l.api().Create(ctx, newLease(host), metav1.CreateOptions{FieldManager: manager})
	if err != nil {
		return nil, fmt.Errorf("making the Lease of this process: %w", err)
	}
	return made, nil
}

// newLease returns a Lease with a new name. The host is a label for people to read.
func newLease(host string) *coordination.Lease {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	name := leasePrefix + hex.EncodeToString(id[:])
	now := metav1.NowMicro()
	lease := &coordination.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: LeaseNamespace, Labels: map[string]string{"app.kubernetes.io/name": manager}},
		Spec: coordination.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: new(int32(leaseDuration / time.Second)), AcquireTime: &now, RenewTime: &now,
		},
	}
	if len(validation.IsValidLabelValue(host)) == 0 {
		lease.Labels["kubernetes.io/hostname"] = host
	}
	return lease
}

// TryLease checks by a dry run whether a process may create its Lease. The error is client-go's.
func TryLease(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	_, err := client.CoordinationV1().Leases(LeaseNamespace).Create(ctx, newLease(""),
		metav1.CreateOptions{FieldManager: manager, DryRun: []string{metav1.DryRunAll}})
	return err
}

// keepRenewed renews a Lease that was requested at that time. It returns nil when ctx ends, and otherwise why the Lease is lost.
func (l *leases) keepRenewed(ctx context.Context, lease *coordination.Lease, asked time.Time) error {
	var last error
	pause := renewal
	for deadline := asked.Add(renewDeadline); drain.Await(ctx, nil, min(pause, time.Until(deadline))); {
		asked := time.Now()
		if !asked.Before(deadline) {
			return fmt.Errorf("%w: %w", errLeaseLost, cmp.Or(last, context.DeadlineExceeded))
		}
		attempt, cancel := context.WithDeadline(ctx, slices.MinFunc([]time.Time{asked.Add(renewalTimeout), deadline}, time.Time.Compare))
		renewed, err := l.renew(attempt, lease)
		cancel()
		switch {
		case err == nil:
			lease, deadline, last, pause = renewed, asked.Add(renewDeadline), nil, renewal
		case errors.Is(err, errLeaseLost):
			return err
		case ctx.Err() == nil:
			last, pause = err, renewalAgain
		}
	}
	return nil
}

// renew renews a Lease once, even if people have changed it. An update by a service account of kube-system has the priority of leader
// election in API servers, which a patch has not. It would create a Lease that does not exist any more, but for the UID in it.
func (l *leases) renew(ctx context.Context, lease *coordination.Lease) (*coordination.Lease, error) {
	for {
		next := lease.DeepCopy()
		now := metav1.NowMicro()
		next.Spec.RenewTime = &now
		renewed, err := l.api().Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		switch {
		case drain.NotFound(err):
			return nil, fmt.Errorf("%w, and has been deleted", errLeaseLost)
		case !apierrors.IsConflict(err):
			return renewed, err
		}
		fresh, err := l.api().Get(ctx, lease.Name, metav1.GetOptions{})
		switch {
		case drain.NotFound(err), err == nil && fresh.UID != lease.UID:
			return nil, fmt.Errorf("%w, and has been deleted", errLeaseLost)
		case err != nil:
			return nil, err
		}
		lease = fresh
	}
}

// release deletes the Lease, which ends all claims of its process. If that fails, they end when the Lease expires.
func (l *leases) release(ctx context.Context, lease *coordination.Lease) error {
	err := l.delete(ctx, lease.Name, metav1.Preconditions{UID: &lease.UID})
	if drain.NotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
