package traffic

import (
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
)

// happened takes what the API server tells of the machine that goes.
func (s *scene) happened(b *balancer, m lab.Moment) {
	switch m.What {
	case lab.Excluded:
		b.exclude(s.doomed.Node.Name, func() { s.elb.Deregister(imdstest.InstanceID) })
	case lab.PodTerminating:
		s.mark(m.Pod, func(p *Pod) { p.Terminating = m.At })
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
	case c.was.ready && !c.is.ready:
		s.mark(pod, func(p *Pod) { p.Unready = now })
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
	defer s.mu.Unlock()
	for _, pod := range s.pods {
		if life, err := s.doomed.Read(pod.Name); err == nil && pod.Life.Terminated.IsZero() {
			pod.Life = life
		}
	}
}
