package fleet_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/fleet"
)

func TestAMessageThatFailsIsTriedForAsLongAsItMayBeReceived(t *testing.T) {
	t.Parallel()
	for receives, want := range map[int]time.Duration{
		0: 0, 1: 2 * time.Second, 2: 6 * time.Second, 5: 62 * time.Second, 100: 62*time.Second + 95*time.Minute,
	} {
		if got := fleet.RetryWindow(receives); got != want {
			t.Errorf("with %d receipts it is tried for %s, want %s", receives, got, want)
		}
	}
}

func TestWhatIsUrgentIsReceivedEachFiveSecondsWhileItFails(t *testing.T) {
	t.Parallel()
	for notice, want := range map[time.Duration]int{0: 0, time.Second: 1, 6 * time.Second: 2, 11 * time.Second: 3, 2 * time.Minute: 25, 10 * time.Minute: 47} {
		if got := fleet.UrgentReceives(notice); got != want {
			t.Errorf("within %s it is received %d times, want %d", notice, got, want)
		}
	}
}
