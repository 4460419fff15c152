package systemd_test

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/systemd"
)

// hanging returns a logger for a journal that takes nothing before it is let go, and what it has taken.
func hanging() (logger *logrus.Logger, letGo func(), taken func() []entry) {
	var sent []entry
	gate := make(chan struct{})
	logger = logrus.New()
	logger.SetOutput(io.Discard)
	logger.AddHook(&systemd.JournalHook{Identifier: "someone", Send: func(message string, priority int, fields map[string]string) error {
		<-gate
		sent = append(sent, entry{message, priority, fields})
		return nil
	}})
	letGo = func() { close(gate); synctest.Wait() }
	return logger, letGo, func() []entry { return sent }
}

func TestJournalHook_AJournalThatHangsDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, letGo, taken := hanging()
		began := time.Now()
		for i := range 500 {
			logger.Info(i)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("500 messages have taken %s", waited)
		}
		letGo()
		for i, e := range taken() {
			if e.message != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, e.message)
			}
		}
		if got := len(taken()); got != 500 {
			t.Errorf("%d messages have arrived, want 500", got)
		}

		// All is well again: what is written has arrived when the next thing is done.
		logger.Info("again")
		if last := taken()[len(taken())-1]; last.message != "again" {
			t.Errorf("the last message is %q", last.message)
		}
	})
}

func TestJournalHook_KeepsABoundedNumberOfEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, letGo, taken := hanging()
		for i := range 2000 {
			logger.Info(i)
		}
		letGo()
		if got := len(taken()); got < 1000 || got > 1100 {
			t.Errorf("%d of 2000 messages were kept, want about a thousand", got)
		}
	})
}
