package imds

import (
	"fmt"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// leastSilence is how long a loop may say nothing, whatever its pace. It is far beyond what a starved machine needs for
// one look, and short enough to start again within a spot notice.
const leastSilence = time.Minute

// pulse is the sign of life of one loop. Its times are on the monotonic clock.
type pulse struct {
	kind  event.Kind
	limit time.Duration // how long the loop may say nothing

	mu   sync.Mutex
	last time.Time // when it last said something; zero while it does not run
}

// newPulse returns the pulse of a loop with that pace whose looks take at most so long, as they should. A document may
// take several looks, and each of them a new session token.
func newPulse(kind event.Kind, p pace, timeout time.Duration) *pulse {
	return &pulse{kind: kind, limit: max(leastSilence, 3*(max(p.interval, p.ceiling)+timeout))}
}

// beat notes that the loop has begun, or has said something.
func (p *pulse) beat() { p.set(time.Now()) }

// rest notes that the loop has ended.
func (p *pulse) rest() { p.set(time.Time{}) }

func (p *pulse) set(last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = last
}

// stuck tells that the loop runs, and has said nothing for longer than it may.
func (p *pulse) stuck() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if silence := time.Since(p.last); !p.last.IsZero() && silence > p.limit {
		return fmt.Errorf("looking for %s: neither an answer nor an error for %s", p.kind, silence.Round(time.Second))
	}
	return nil
}

// Stuck tells that something is polled in vain: for far longer than its pace and its timeout allow, its loop has told
// the sink neither of a snapshot nor of trouble. A service that does not answer is trouble, and nothing is stuck.
func (s *Source) Stuck() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pulses {
		if err := p.stuck(); err != nil {
			return err
		}
	}
	return nil
}
