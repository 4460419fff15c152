package demo

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// notice is what EC2 gives before it takes a spot instance.
const notice = 2 * time.Minute

// joinAfter is when the machine joins that takes over. Until then evicted pods have nowhere to start anew, and budgets
// have reason to hold others back.
const joinAfter = 3 * time.Second

// play is the demo from the rise of the curtain on.
func play(t lab.TB, p *page, keep bool) {
	s := setUp(t, p)
	p.say(plain, "")
	p.say(strong, "EC2 announces the end of this machine, with two minutes' notice.")
	p.say(faint, "Times are since the announcement; what happened is what the API server and nth's journal say.")
	p.say(plain, "")
	p.pods = longest(s.evictable)
	n, left := s.interrupt(t, p)
	s.nth.Stop(t)
	p.say(plain, "")
	s.summarize(p, n, left)
	s.show(t, p)
	fault := verdict(s.node.Object(t), s.node.Pods(t), left)
	p.verdict(fault)
	if keep {
		s.invite(t, p)
	} else {
		p.say(faint, "Look around yourself: make demo KEEP=1 leaves the cluster running for kubectl.")
	}
	if fault != nil {
		t.Fatalf("%v", fault)
	}
}

// interrupt lets EC2 announce the interruption and prints what happens until nth is done with it. It returns the time
// that was left then.
func (s *scene) interrupt(t lab.TB, p *page) (*narrator, time.Duration) {
	line := newTimeline()
	stop := s.node.Observe(t, func(m lab.Moment) { line.add(factOf(m)) })
	finished := s.listen(line)

	start := time.Now()
	deadline := start.Add(notice).Truncate(time.Second) // EC2's times have no fractions
	line.add(fact{at: start, kind: announced, text: fmt.Sprintf("spot/instance-action: terminate at %s, in %.1f s",
		deadline.UTC().Format("15:04:05 UTC"), deadline.Sub(start).Seconds())})
	s.imds.SetSpot("terminate", deadline)

	n := newNarrator(start)
	tick := time.NewTicker(lag / 5)
	defer tick.Stop()
	join := time.After(joinAfter)
	for done := false; !done; {
		select {
		case <-tick.C:
			s.print(p, n.tell(line.until(time.Now().Add(-lag))))
		case <-join:
			spare := s.node.AddSpare(t)
			line.add(fact{at: time.Now(), kind: announced, text: spare.Name + " joins the cluster"})
		case <-finished:
			done = true
		case <-s.nth.Done():
			done = true
		case <-t.Context().Done():
			t.Fatalf("%v", t.Context().Err())
		}
	}
	left := time.Until(deadline)
	s.catchUp(t, line)
	stop()
	s.print(p, n.tell(line.until(time.Now())))
	return n, left
}

// listen makes facts of what nth's journal and the metadata service tell. The channel is closed when nth says how the
// drain ended.
func (s *scene) listen(line *timeline) (finished <-chan struct{}) {
	end := make(chan struct{})
	ended := false
	s.nth.Follow(func(e daemon.Entry) {
		if f, ok := factFrom(e); ok {
			line.add(f)
		}
		switch e.Fields[systemd.FieldMessageID] {
		case systemd.Drained, systemd.DrainIncomplete:
			if !ended {
				ended = true
				close(end)
			}
		}
	})
	told := false
	s.imds.OnRequest(func(e imdstest.Exchange) {
		if !told && strings.HasSuffix(e.Path, "/spot/instance-action") && e.Status == http.StatusOK {
			told = true
			line.add(fact{at: time.Now(), kind: read, text: "nth's poll is answered with the notice"})
		}
	})
	return end
}

// catchUp waits, for as long as nth's word may be ahead of the watch, until the watch has told the end of all pods.
func (s *scene) catchUp(t lab.TB, line *timeline) {
	patience := time.After(4 * lag)
	for !line.allGone(s.evictable) {
		select {
		case <-time.After(lag / 10):
		case <-patience:
			return
		case <-t.Context().Done():
			return
		}
	}
}

func (s *scene) print(p *page, rows []row) {
	for _, r := range rows {
		p.row(r)
	}
}

func longest(names []string) int {
	n := 0
	for _, name := range names {
		n = max(n, len(name))
	}
	return n
}
