package program_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/cmd/internal/program"
)

func TestWhatEndsIsWaitedForAndWhatHangsOnlyForSoLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, hangs := time.Now(), make(chan struct{})
		if !program.Within(5*time.Second, func() { time.Sleep(time.Second) }) || time.Since(began) != time.Second {
			t.Errorf("what ends was waited for for %s", time.Since(began))
		}
		if program.Within(5*time.Second, func() { <-hangs }) || time.Since(began) != 6*time.Second {
			t.Errorf("what hangs was waited for for %s", time.Since(began)-time.Second)
		}
		close(hangs)
	})
}
