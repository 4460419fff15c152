package main_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	nth "github.com/nth-project/nth/cmd/nth"
)

func TestWhereNobodyWatchesALoopThatStallsEndsTheProcess(t *testing.T) {
	for name, c := range map[string]struct {
		then func(beat, stopping func(), end context.CancelFunc) // after a minute of beats
		wait time.Duration
		ends bool
	}{
		"it is silent for half a minute":   {func(func(), func(), context.CancelFunc) {}, 32 * time.Second, true},
		"it is silent for a little less":   {func(func(), func(), context.CancelFunc) {}, 28 * time.Second, false},
		"it goes on at its slowest":        {func(beat, _ func(), _ context.CancelFunc) { beatEvery(20*time.Second, 6, beat) }, 0, false},
		"it is silent since nth stops":     {func(_, stopping func(), _ context.CancelFunc) { stopping() }, time.Hour, false},
		"it is silent since nth has ended": {func(_, _ func(), end context.CancelFunc) { end() }, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				ended := false
				beat, stopping := nth.Vigil(ctx, func() { ended = true })
				beatEvery(time.Second, 60, beat)
				c.then(beat, stopping, end)
				time.Sleep(c.wait)
				synctest.Wait()
				if ended != c.ends {
					t.Errorf("it has ended: %t, want %t", ended, c.ends)
				}
				end()
			})
		})
	}
}

func beatEvery(pause time.Duration, times int, beat func()) {
	for range times {
		beat()
		time.Sleep(pause)
	}
}

func TestAProcessThatHasStalledSaysWhatItWasDoingAndEnds(t *testing.T) {
	var log, dump bytes.Buffer
	status := -1
	nth.GiveUp(logger(&log), &dump, func(s int) { status = s })
	if status != 1 || !strings.Contains(log.String(), "no sign of life for 30s") || !strings.Contains(dump.String(), t.Name()) {
		t.Errorf("it ended with status %d, said\n%s\nand was doing\n%s", status, &log, &dump)
	}
}

// What it hangs on may be the very log.
func TestAProcessThatHasStalledEndsThoughNobodyTakesItsLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, taken := io.Pipe()
		status := -1
		nth.GiveUp(logger(taken), taken, func(s int) { status = s })
		if status != 1 {
			t.Errorf("it ended with status %d", status)
		}
		_ = full.Close() // Whoever waits for it ends.
	})
}

func logger(to io.Writer) *logrus.Entry {
	l := logrus.New()
	l.SetOutput(to)
	return logrus.NewEntry(l)
}
