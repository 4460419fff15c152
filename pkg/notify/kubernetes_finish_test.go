package notify_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

// One that tells of a node among many ends by itself, with all that it was told written, when it is its turn.
func TestWhatWasToldBeforeTheFinishIsWritten(t *testing.T) {
	play(t, bare, func(s *stage) {
		turn := make(chan struct{}, 1)
		s.opts.Condition = false
		s.opts.Turn = func(ctx context.Context, _ bool) (func(), error) {
			select {
			case turn <- struct{}{}:
				return func() { <-turn }, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		s.start()
		turn <- struct{}{} // Somebody else makes a request.
		s.cordoned()
		s.tell(drained(1))
		s.k.Finish()
		s.pass(10 * time.Second)
		if lines := s.lines(); len(lines) > 0 {
			t.Errorf("while it is not its turn it wrote %v", lines)
		}
		<-turn
		s.ended.Wait()
		if lines := s.lines(); len(lines) != 2 {
			t.Errorf("it wrote %v, want the cordon and the end", lines)
		}
	})
}

// Whoever watches nodes acts upon the condition, and upon Events later.
func TestTheConditionIsHurriedAndEventsAreNot(t *testing.T) {
	play(t, bare, func(s *stage) {
		hurried := map[bool]int{}
		s.opts.Turn = func(_ context.Context, so bool) (func(), error) {
			hurried[so]++
			return func() {}, nil
		}
		s.start()
		s.cordoned()
		s.tell(drained(1))
		s.k.Finish()
		s.ended.Wait()
		if len(s.lines()) != 2 || hurried[false] != 2 || hurried[true] == 0 {
			t.Errorf("of %d Events and the condition, %d turns were for what is not hurried, and %d for what is", len(s.lines()), hurried[false], hurried[true])
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
		if took := time.Since(began); took < 4*time.Minute || took > 7*time.Minute {
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
