package asgtest

import "time"

// Fault is how requests are broken.
type Fault struct {
	// Action is what must be asked for; empty is anything.
	Action string
	// Times is how many requests are broken; 0 is all until Lift.
	Times int
	// Status and Code are what is answered; 0 hangs until the client gives up, and with 200 the answer is only late.
	Status int
	Code   string
	// After has the request take effect before it is answered so, as when an answer gets lost.
	After bool
	// Delay is how long the answer takes.
	Delay time.Duration
}

// Throttled is the answer to one who asks too much.
func Throttled(action string, times int) Fault {
	return Fault{Action: action, Times: times, Status: 400, Code: "Throttling"}
}

// Fail breaks requests from now on. Of several faults that meet a request, the one set first breaks it.
func (s *Service) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// Lift ends all faults.
func (s *Service) Lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Deny refuses actions to everybody, as IAM does without a policy; Allow ends that.
func (s *Service) Deny(actions ...string) { s.permit(false, actions) }

// Allow allows actions that were denied.
func (s *Service) Allow(actions ...string) { s.permit(true, actions) }

func (s *Service) permit(allowed bool, actions []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range actions {
		s.denied[a] = !allowed
	}
}

// fault returns the fault that a request for an action meets.
func (s *Service) fault(action string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, f := range s.faults {
		if f.Action != "" && f.Action != action {
			continue
		}
		if f.Times == 1 {
			s.faults = append(s.faults[:n:n], s.faults[n+1:]...)
		} else if f.Times > 1 {
			s.faults[n].Times--
		}
		return f, true
	}
	return Fault{}, false
}
