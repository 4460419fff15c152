package daemon_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
)

func TestWithin_waits_for_what_ends_and_not_for_what_hangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, hangs := time.Now(), make(chan struct{})
		if !daemon.Within(5*time.Second, func() { time.Sleep(time.Second) }) || time.Since(began) != time.Second {
			t.Errorf("what ends was waited for for %s", time.Since(began))
		}
		if daemon.Within(5*time.Second, func() { <-hangs }) || time.Since(began) != 6*time.Second {
			t.Errorf("what hangs was waited for for %s", time.Since(began)-time.Second)
		}
		close(hangs)
	})
}
