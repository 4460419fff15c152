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

// leaseTerm is a time in which this process holds a Lease, under a name that it has for that time alone. What is taken in it
// ends with it. In a dry run there is one term without a Lease, and without a name.
type leaseTerm struct {
	// ctx ends with the term. leased ends when its Lease is lost, and not at an orderly end, when what has begun is finished first.
	ctx, leased context.Context // what is taken in the term ends with it
	process     string
	// sessions are those that have begun, and whatever else writes for the process.
	sessions sync.WaitGroup
	// orphans are the Nodes that bear a claim of this process under which nothing is drained, and since when that is so, or was last tried to
	// be ended. Only the goroutine that serves has them.
	orphans map[string]time.Time
}

// terms lead from one Lease to the next until ctx ends. begun is called in each.
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

// serveWithLease serves for as long as a Lease is held that was asked for at that time.
func (f *Fleet) serveWithLease(ctx context.Context, lease *coordination.Lease, asked time.Time, begun func()) {
	leased, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	held, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t := &leaseTerm{ctx: held, leased: leased, process: lease.Name}
	// The Lease is kept until the last drain has stopped, also after the end of ctx.
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

// noteLease takes in whether this process has its Lease, and says so when that changes.
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

// Paused tells whether nothing is to be taken now: this process has no Lease. It implements sqs.Options.Paused.
func (f *Fleet) Paused() bool {
	t := f.term.Load()
	return t == nil || t.ctx.Err() != nil
}

// LeaseError tells why this process has no Lease, so that it drains nothing; nil if it has one, or has not asked yet.
func (f *Fleet) LeaseError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leaseError
}

// serve lets the line move until a term ends. Then it stops all drains where they are, and gives back what they are for.
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
		case <-ticks.C: // All Nodes are looked at for these, which would be too often in a storm of changes.
			f.checkClaims(t)
			f.endOrphans(t)
		}
	}
	f.returnWaiting(func(t *task) { t.retryAfter(0) }) // Others can go on at once.
	t.sessions.Wait()
}

// finishing returns a context for what is finished also at an orderly end of ctx, which is one of the term's: it ends where the Lease, or what
// ctx is for, is lost, as it may be another's then.
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

// isClaimLost tells whether a session ended since what it has claimed may be another's.
func isClaimLost(cause error) bool {
	return errors.Is(cause, errClaimLost) || errors.Is(cause, errLeaseLost)
}

const (
	// LeaseNamespace is where the Leases of all nth-queue processes are. There is nothing else in it, as RBAC cannot narrow the
	// right to make Leases to some names: in kube-system it would be a right to those of the control plane, too.
	LeaseNamespace = "nth-queue"
	// leasePrefix is what the names of processes begin with.
	leasePrefix = "nth-queue-"
)

const (
	// leaseDuration is for how long others respect a Lease after they have last seen it change. It is as long as SQS hides a
	// message by default: what a process that was killed has left behind can be seen again and begun again at the same time.
	leaseDuration = 20 * time.Second
	// renewDeadline is for how long a process goes on that does not get its Lease renewed. In the time that is left to
	// leaseDuration its drains stop, before others may begin them.
	renewDeadline = 14 * time.Second
	// renewal is how often a Lease is renewed, and the others are looked at; renewalAgain the same after a failure, and while
	// something waits for what they say.
	renewal, renewalAgain = 4 * time.Second, time.Second
	// renewalTimeout bounds one request about Leases.
	renewalTimeout = 5 * time.Second
	// cleanedAtOnce is how many Leases of processes that are no more are deleted at one look.
	cleanedAtOnce = 10
)

// errLeaseLost says that this process does not hold its Lease any more: what it has claimed may be others'.
var errLeaseLost = errors.New("the Lease of this process was not renewed in time")

// leases are those of all nth-queue processes. A process lives as long as its Lease is there: it deletes it at its end, and
// where it was killed others do. They go by their own clocks and by nobody else's: a Lease that they have not seen change
// for its whole duration is deleted in the version that they have seen, and a process that has lost its Lease finds that
// out before.
type leases struct {
	client kubernetes.Interface
	// dryRun deletes nothing.
	dryRun bool
	// changed is called when others may have ended.
	changed func()

	mu   sync.Mutex
	seen map[string]leaseVersion // by process
	// ended are processes that are known not to live any more. A name is never used twice.
	ended map[string]bool
	// asked are those that somebody has asked about since the last look, and that it has not shown.
	asked map[string]bool
	// lookDue tells that something waits for the next look.
	lookDue bool
	// slots is the Lease placesLease as the last look has shown it, which began at looked; nil if there is none.
	slots  *coordination.Lease
	looked time.Time
}

// lookSoon makes the next look come soon.
func (l *leases) lookSoon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lookDue = true
}

// leaseVersion is one version of a Lease, and since when it has been known, by a clock that nobody sets.
type leaseVersion struct {
	uid     types.UID
	version string
	lasts   time.Duration
	since   time.Time
}

// maxEnded bounds how many processes that have ended are remembered. Who is forgotten is looked for again.
const maxEnded = 1000

func newLeases(client kubernetes.Interface, dryRun bool, changed func()) *leases {
	return &leases{client: client, dryRun: dryRun, changed: changed, seen: map[string]leaseVersion{}, ended: map[string]bool{}, asked: map[string]bool{}}
}

func (l *leases) api() coordinationclient.LeaseInterface {
	return l.client.CoordinationV1().Leases(LeaseNamespace)
}

// hasEnded tells whether a process is known not to live any more. It asks nobody: what is not known is known after the next look.
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

// run looks at the Leases until ctx ends.
func (l *leases) run(ctx context.Context) {
	for last := (time.Time{}); ; {
		if l.due(last) {
			last = time.Now()
			l.look(ctx)
		}
		if !drain.Await(ctx, nil, renewalAgain) {
			return
		}
	}
}

func (l *leases) due(last time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lookDue || time.Since(last) >= renewal
}

// look lists the Leases once, and deletes those of processes that are no more. A look that fails changes nothing.
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

// update takes in which Leases there are by a look that began then, and whose were asked about before. It returns some that were not renewed in
// time.
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

// noteEnded takes in that a process has ended if its Lease is not there. l.mu is held.
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

// durationOf is for how long a Lease says that it holds.
func durationOf(lease *coordination.Lease) time.Duration {
	if s := lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		return time.Duration(*s) * time.Second
	}
	return leaseDuration
}

// deleteEnded ends a process that has not renewed its Lease in time, unless it does so in this moment.
func (l *leases) deleteEnded(ctx context.Context, process string, old leaseVersion) {
	var err error
	if !l.dryRun {
		err = l.delete(ctx, process, metav1.Preconditions{UID: &old.uid, ResourceVersion: &old.version})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return // It has been renewed, as the next look shows, or is looked at again.
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

// create makes the Lease of a new process on a host.
func (l *leases) create(ctx context.Context, host string) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	made, err := l.api().Create(ctx, newLease(host), metav1.CreateOptions{FieldManager: manager})
	if err != nil {
		return nil, fmt.Errorf("making the Lease of this process: %w", err)
	}
	return made, nil
}

// newLease is the Lease of a process with a name that no other one has. The host is there for people to read.
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

// TryLease tells why a process cannot make its Lease; nil if it can. Nothing is made. The error is client-go's.
func TryLease(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	_, err := client.CoordinationV1().Leases(LeaseNamespace).Create(ctx, newLease(""),
		metav1.CreateOptions{FieldManager: manager, DryRun: []string{metav1.DryRunAll}})
	return err
}

// keepRenewed renews a Lease that was asked for at that time, until ctx ends, and returns why it is lost; nil if it is not.
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

// renew renews a Lease once, also where people have changed it. To update it counts among what leaders of controllers ask,
// which API servers answer first, where the identity is a service account of kube-system. A Lease that is not there would be
// made by that, but for the UID.
func (l *leases) renew(ctx context.Context, lease *coordination.Lease) (*coordination.Lease, error) {
	for {
		next := lease.DeepCopy()
		now := metav1.NowMicro()
		next.Spec.RenewTime = &now
		renewed, err := l.api().Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("%w, and has been deleted", errLeaseLost)
		case !apierrors.IsConflict(err):
			return renewed, err
		}
		fresh, err := l.api().Get(ctx, lease.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && fresh.UID != lease.UID:
			return nil, fmt.Errorf("%w, and has been deleted", errLeaseLost)
		case err != nil:
			return nil, err
		}
		lease = fresh
	}
}

// release ends a process: its claims are nobody's from then on. Where that does not work out, they are once the Lease has
// not been renewed for its duration.
func (l *leases) release(ctx context.Context, lease *coordination.Lease) error {
	err := l.delete(ctx, lease.Name, metav1.Preconditions{UID: &lease.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
