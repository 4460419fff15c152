package systemd_test

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/pkg/systemd"
)

// entry is what reached the journal.
type entry struct {
	message  string
	priority int
	fields   map[string]string
}

// journaling returns a logger, and a function that returns the next entry that has reached the journal.
func journaling(t *testing.T) (logger *logrus.Logger, next func() entry) {
	t.Helper()
	sent := make(chan entry, 16)
	logger = logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.DebugLevel)
	logger.AddHook(&systemd.JournalHook{Identifier: "someone", Send: func(message string, priority int, fields map[string]string) error {
		sent <- entry{message, priority, fields}
		return nil
	}})
	return logger, func() entry {
		t.Helper()
		select {
		case e := <-sent:
			return e
		case <-time.After(time.Minute):
			t.Fatal("the journal gets nothing")
			return entry{}
		}
	}
}

func TestJournalHook_SendsFieldsApartFromTheMessage(t *testing.T) {
	logger, next := journaling(t)
	logger.WithFields(logrus.Fields{
		systemd.FieldMessageID: systemd.PodEvicted, systemd.FieldEventID: "a", systemd.FieldEventKind: "b", systemd.FieldPhase: "c", systemd.FieldNode: "d",
		systemd.FieldPod: "default/web-0",
	}).Info("evicted the pod\n")

	want := entry{
		message:  "evicted the pod",
		priority: 6,
		fields: map[string]string{
			"MESSAGE_ID": systemd.PodEvicted, "NTH_EVENT_ID": "a", "NTH_EVENT_KIND": "b", "NTH_PHASE": "c", "NTH_NODE": "d", "NTH_POD": "default/web-0",
			"SYSLOG_IDENTIFIER": "someone",
		},
	}
	got := next()
	if got.message != want.message || got.priority != want.priority || !maps.Equal(got.fields, want.fields) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestJournalHook_PrioritiesFollowLevels(t *testing.T) {
	logger, next := journaling(t)
	for _, level := range []logrus.Level{logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel, logrus.InfoLevel, logrus.DebugLevel} {
		logger.Log(level, "x")
	}
	for _, want := range []int{2, 3, 4, 6, 7} {
		if got := next().priority; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}

func TestJournalHook_WritesWhatTheJournalRefuses(t *testing.T) {
	read, write := io.Pipe()
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.AddHook(&systemd.JournalHook{
		Send:     func(string, int, map[string]string) error { return errors.New("no journal") },
		Fallback: write,
	})
	go func() {
		logger.WithField(systemd.FieldNode, "a").Warn("pods are left:\ndefault/x\n")
		logger.Error("over")
	}()
	lines := bufio.NewReader(read)
	for _, want := range []string{"<4>pods are left:\n", "<4>default/x\n", "<3>over\n"} {
		if got, err := lines.ReadString('\n'); got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}
