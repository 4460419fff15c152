package fleet_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/fleet"
)

// pair is two processes on one cluster, of which the first leads.
func (c *cluster) pair(change func(*fleet.Options)) (first, second *rig) {
	first = c.start("host-1", change)
	eventually(c.t, "the first leads", func() bool { return first.Status().Leads })
	second = c.start("host-2", change)
	time.Sleep(5 * time.Second)
	if now := second.Status(); now.Leads || now.Leader != "host-1" || !now.Known {
		c.t.Errorf("the second stands as %+v", now)
	}
	return first, second
}

func TestRun_HandsTheLeaseOverAtAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		first, second := c.pair(nil)
		second.take(spot(other)).want(t, "returned") // It does not lead.
		m := first.take(notice(instance, event.RebalanceRecommendation, "", 0))
		time.Sleep(10 * time.Second)
		m.held(t)
		began := time.Now()
		first.stop()
		m.want(t, "returned")
		eventually(t, "the second leads", func() bool { return second.Status().Leads })
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the second leads after %s", took)
		}
		c.before("evict", nil)
		second.take(notice(instance, event.RebalanceRecommendation, "", 0)).want(t, "done")
		c.wantDrained("a")
	})
}

// A leader that is away from the API server, or frozen, writes nothing once the other may lead.
func TestRun_LetsOneProcessWriteAtATime(t *testing.T) {
	const nodes = 50
	type partition struct {
		begin func(r *rig, c *cluster) (mend func())
		stays bool // nobody leads until it is over
	}
	each(t, map[string]partition{
		"the leader is cut off": {begin: func(r *rig, _ *cluster) func() {
			r.way.broken.Store(true)
			return func() { r.way.broken.Store(false) }
		}},
		"the leader is frozen": {begin: func(r *rig, _ *cluster) func() {
			r.way.freeze()
			return r.way.thaw
		}},
		"only its Lease cannot be renewed": {stays: true, begin: func(_ *rig, c *cluster) func() {
			c.before("renew", held)
			return func() { c.before("renew", nil) }
		}},
	}, func(t *testing.T, c *cluster, row partition) {
		for i := range nodes {
			c.add(nodeOf(fmt.Sprintf("n%d", i), fmt.Sprintf("i-%d", i)), podOn(fmt.Sprintf("n%d", i), fmt.Sprintf("p%d", i)))
		}
		c.before("evict", held)
		first, second := c.pair(nil)
		var messages []parcel
		for i := range nodes {
			messages = append(messages, first.take(notice(fmt.Sprintf("i-%d", i), event.RebalanceRecommendation, "", 0)))
		}
		time.Sleep(10 * time.Second)
		mend := row.begin(first, c)
		c.watchWriters(first.way, second)
		if time.Sleep(20 * time.Second); second.Status().Leads == row.stays {
			t.Errorf("after 20 seconds, the second leads: %t", second.Status().Leads)
		}
		time.Sleep(10 * time.Second)
		if row.stays {
			mend()
		}
		eventually(t, "the second leads", func() bool { return second.Status().Leads || first.Status().Leads })
		mend()
		time.Sleep(10 * time.Second)
		for _, m := range messages {
			m.want(t, "returned")
		}
		leader := second
		if first.Status().Leads {
			leader = first
		}
		c.before("evict", nil)
		for i := range nodes {
			leader.take(notice(fmt.Sprintf("i-%d", i), event.RebalanceRecommendation, "", 0)).want(t, "done")
			c.wantDrained(fmt.Sprintf("n%d", i))
		}
	})
}

// watchWriters fails the test if a process writes while another one leads.
func (c *cluster) watchWriters(of *way, second *rig) {
	of.mu.Lock()
	defer of.mu.Unlock()
	of.wrote = func(what string) {
		if second.Status().Leads {
			c.t.Errorf("%s, while the other leads", what)
		}
	}
}

func TestStatus_SaysWhyTheLeaseCannotBeTaken(t *testing.T) {
	each(t, map[string]string{"it cannot be made": "make", "it cannot be renewed": "renew"}, func(t *testing.T, c *cluster, request string) {
		if request == "renew" { // Another process has led, and is gone.
			c.start("host-0", nil).way.broken.Store(true)
			time.Sleep(10 * time.Second)
		}
		c.before(request, held)
		r := c.start("host-1", nil)
		time.Sleep(3 * time.Minute)
		if now := r.Status(); now.Leads || now.LeaseError == nil || !strings.Contains(now.LeaseError.Error(), "not now") || time.Since(now.Since) < time.Minute {
			t.Errorf("it stands as %+v", now)
		}
		c.before(request, nil)
		eventually(t, "it leads", func() bool { return r.Status().Leads })
		if now := r.Status(); now.LeaseError != nil || now.Leader != "host-1" || c.leader() != "host-1" {
			t.Errorf("it stands as %+v", now)
		}
	})
}

func TestTake_SharesTheWorkOfMessagesAboutOneEvent(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		r := c.run(nil)
		var all sync.WaitGroup
		for range 10 {
			m := r.take(spot(instance))
			all.Go(func() { m.want(t, "done") })
		}
		all.Wait()
		if c.times("evict") != 1 {
			t.Errorf("there were %d evictions, want one", c.times("evict"))
		}
	})
}

// slowLease passes the answers to writes on late, until it is cut off.
type slowLease struct {
	next http.RoundTripper
	off  atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (s *slowLease) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.off.Load() {
		return nil, errors.New("no route to host")
	}
	answer, err := s.next.RoundTrip(r)
	if err == nil && r.Method != http.MethodGet {
		time.Sleep(9 * time.Second)
	}
	return answer, err
}

// The Lease runs from when it was renewed, and not from when a slow API server has said so.
func TestRun_CountsTheLeaseFromTheRequest(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, c *cluster) {
		c.add(nodeOf("a", instance), podOn("a", "one"))
		c.before("evict", held)
		lease := &slowLease{}
		slowly := func(o *fleet.Options) {
			if api, is := o.Leases.CoreV1().RESTClient().(*rest.RESTClient); is {
				lease.next, api.Client.Transport = api.Client.Transport, lease
			}
		}
		zeroth := c.start("host-0", slowly)
		eventually(t, "it is elected", func() bool { return c.leader() == "host-0" })
		if zeroth.stop(); c.leader() != "" { // before it knows
			t.Errorf("the Lease is still %s's", c.leader())
		}
		first := c.start("host-1", slowly)
		eventually(t, "the first leads", func() bool { return first.Status().Leads })
		second := c.start("host-2", nil)
		first.take(notice(instance, event.RebalanceRecommendation, "", 0))
		time.Sleep(30 * time.Second)
		for renewed := c.times("renew"); c.times("renew") == renewed; {
			time.Sleep(10 * time.Millisecond)
		}
		lease.off.Store(true)
		c.watchWriters(first.way, second)
		eventually(t, "the second leads", func() bool { return second.Status().Leads })
		time.Sleep(10 * time.Second)
	})
}
