package notify_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

// One that tells of a node among many ends by itself, with all that it was told written, when it is its turn.
func TestWhatWasToldBeforeTheFinishIsWritten(t *testing.T) {
	play(t, bare, func(s *stage) {
		share := make(chan struct{}, 1)
		s.opts.Condition, s.opts.Share = false, share
		s.start()
		share <- struct{}{} // Somebody else makes a request.
		s.cordoned()
		s.tell(drained(1))
		s.k.Finish()
		s.pass(10 * time.Second)
		if lines := s.lines(); len(lines) > 0 {
			t.Errorf("while it is not its turn it wrote %v", lines)
		}
		<-share
		s.ended.Wait()
		if lines := s.lines(); len(lines) != 2 {
			t.Errorf("it wrote %v, want the cordon and the end", lines)
		}
	})
}

func TestAfterTheFinishAnOutageIsWaitedForOnlyAWhile(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.start()
		s.away.Store(true)
		s.tell(step(record.Begun, "drain", spot(record.Draining)))
		s.k.Finish()
		began := time.Now()
		s.ended.Wait()
		if took := time.Since(began); took < 30*time.Second || took > 3*time.Minute {
			t.Errorf("it ended after %s", took)
		}
		synctest.Wait()
	})
}

func TestACordonThatIsLeftToOthersSaysToWhom(t *testing.T) {
	play(t, bare, func(s *stage) {
		s.opts.Condition = false
		s.start()
		left := step(record.Done, "uncordon", spot(record.Closed))
		left.Detail = "Karpenter"
		s.tell(left)
		s.pass(time.Second)
		s.wantLines("Node default/node-1 Normal Uncordon: the cordon is left to Karpenter, who still needs it: the reason")
	})
}
