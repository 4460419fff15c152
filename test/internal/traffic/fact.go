package traffic

import (
	"fmt"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
)

// A Weight says how much a fact wants to be seen.
type Weight int

// The weights.
const (
	Plain Weight = iota
	Strong
	Bad
)

// EC2 is who announces the end of the machine and brings it about. The first fact that it tells is the notice.
const EC2 = "EC2"

// A Fact is one thing that happened, for people who watch.
type Fact struct {
	At           time.Time
	Who, Subject string
	Text         string
	Weight       Weight
}

func (s *scene) say(who, subject string, w Weight, format string, args ...any) {
	if s.over.Load() {
		return // a timer may still run
	}
	s.tell(Fact{At: time.Now(), Who: who, Subject: subject, Text: fmt.Sprintf(format, args...), Weight: w})
}

// happened takes what the API server tells of the machine that goes.
func (s *scene) happened(b *balancer, m lab.Moment) {
	switch m.What {
	case lab.Excluded:
		s.say("node", "", Strong, "labelled: to be excluded from load balancers")
		b.exclude(s.doomed.Node.Name, told{
			deregistered: func() {
				s.say("LB", Balanced, Plain, "deregisters the machine that goes")
				s.elb.Deregister(imdstest.InstanceID)
			},
			closed: func() { s.say("LB", Balanced, Plain, "sends nothing new there any more") },
			out:    func() { s.say("LB", Balanced, Plain, "the machine that goes is out") },
		})
	case lab.Cordoned:
		s.say("node", "", Strong, "cordoned")
	case lab.PodTerminating:
		s.mark(m.Pod, func(p *Pod) { p.Terminating = m.At })
		s.say("pod", m.Pod, Plain, "is to go")
	case lab.PodGone:
		s.say("pod", m.Pod, Plain, "is gone")
	}
}

// changed takes what an EndpointSlice tells.
func (s *scene) changed(service string, c change) {
	pod := c.is.pod
	if pod == "" {
		pod = c.was.pod
	}
	now := time.Now()
	switch {
	case c.is.ready && !c.was.ready:
		if !s.mark(pod, func(*Pod) {}) {
			s.mu.Lock()
			s.replaced[service] = append(s.replaced[service], now)
			s.mu.Unlock()
		}
		s.say("service", pod, Plain, "ready, on %s", s.called(c.is.node))
	case c.was.ready && !c.is.ready:
		s.mark(pod, func(p *Pod) { p.Unready = now })
		s.say("service", pod, Plain, "not ready any more")
	}
	if c.is.pod == "" {
		s.mark(pod, func(p *Pod) { p.Removed = now })
	}
}

// mark notes something of a pod, if it was on the machine that goes from the beginning.
func (s *scene) mark(pod string, note func(*Pod)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[pod]
	if p != nil {
		note(p)
	}
	return p != nil
}

// hear looks for pods that have got SIGTERM since it was called last.
func (s *scene) hear() {
	s.mu.Lock()
	var told []Fact
	for _, pod := range s.pods {
		if !pod.Life.Terminated.IsZero() {
			continue
		}
		life, err := s.doomed.Read(pod.Name)
		if err != nil || life.Terminated.IsZero() {
			continue
		}
		pod.Life = life
		told = append(told, Fact{At: life.Terminated, Who: "pod", Subject: pod.Name, Text: "gets SIGTERM"})
	}
	s.mu.Unlock()
	for _, f := range told {
		s.tell(f)
	}
}
