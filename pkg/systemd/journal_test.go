package systemd_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

// journaling returns a logger that writes to the journal by send, and otherwise to fallback.
func journaling(send func(string, int, map[string]string) error, fallback io.Writer) *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.DebugLevel)
	logger.AddHook(&systemd.JournalHook{Identifier: "someone", Send: send, Fallback: fallback})
	return logger
}

func TestJournalHook_SendsFieldsAndPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []entry
		logger := journaling(func(message string, priority int, fields map[string]string) error {
			sent = append(sent, entry{message, priority, fields})
			return nil
		}, nil)
		logger.WithFields(logrus.Fields{systemd.FieldMessageID: systemd.PodEvicted, systemd.FieldPod: "default/web-0"}).Info("evicted the pod\n")
		for _, level := range []logrus.Level{logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel, logrus.DebugLevel} {
			logger.Log(level, "x")
		}
		synctest.Wait()
		var priorities []int
		for _, e := range sent {
			priorities = append(priorities, e.priority)
		}
		want := map[string]string{"MESSAGE_ID": systemd.PodEvicted, "NTH_POD": "default/web-0", "SYSLOG_IDENTIFIER": "someone"}
		if sent[0].message != "evicted the pod" || !maps.Equal(sent[0].fields, want) || !slices.Equal(priorities, []int{6, 2, 3, 4, 7}) {
			t.Errorf("sent was %+v", sent)
		}
	})
}

func TestJournalHook_WritesWhatTheJournalRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written strings.Builder
		logger := journaling(func(string, int, map[string]string) error { return errors.New("no journal") }, &written)
		logger.WithField(systemd.FieldNode, "a").Warn("pods are left:\ndefault/x\n")
		logger.Error("over")
		synctest.Wait()
		if got := written.String(); got != "<4>pods are left:\n<4>default/x\n<3>over\n" {
			t.Errorf("written was %q", got)
		}
	})
}

// The journal takes nothing before it works again. Then it gets a bounded number of entries, in sequence.
func TestJournalHook_AJournalThatHangsDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := make(chan struct{})
		var sent []string
		logger := journaling(func(message string, _ int, _ map[string]string) error {
			<-works
			sent = append(sent, message)
			return nil
		}, nil)
		began := time.Now()
		for i := range 2000 {
			logger.Info(i)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("2000 messages have taken %s", waited)
		}
		close(works)
		synctest.Wait()
		for i, message := range sent {
			if message != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, message)
			}
		}
		if len(sent) < 1000 || len(sent) > 1100 {
			t.Errorf("%d of 2000 messages were kept, want about a thousand", len(sent))
		}
		logger.Info("again") // What is logged has arrived when the next thing is done.
		if last := sent[len(sent)-1]; last != "again" {
			t.Errorf("the last message is %q", last)
		}
	})
}
