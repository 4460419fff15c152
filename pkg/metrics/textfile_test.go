package metrics_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/record"
)

// written returns what the file says of one series, "" if it says nothing.
func written(t *testing.T, file, series string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, series+" "); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// running runs f while the metrics are kept in a file.
func running(t *testing.T, opts metrics.Options, f func(t *testing.T, m *metrics.Metrics, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(opts)
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { m.Run(ctx) })
		stop := func() { cancel(); ended.Wait() }
		defer stop()
		synctest.Wait()
		f(t, m, stop)
	})
}

func TestTheFileIsWrittenAtOnceAtAChangeAndAtTheEnd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nth.prom")
	running(t, metrics.Options{Textfile: file}, func(t *testing.T, m *metrics.Metrics, stop func()) {
		evicted := func(want string) {
			t.Helper()
			if got := written(t, file, "nth_pods_evicted_total"); got != want {
				t.Errorf("the file has %q pods evicted, want %q", got, want)
			}
		}
		evicted("0")
		time.Sleep(5 * time.Second)
		m.Hear(spot(record.PodEvicted, 0, 0))
		synctest.Wait()
		evicted("1")
		for range 10 { // are not worth writing the file for, each
			m.Hear(spot(record.PodEvicted, 0, 0))
		}
		synctest.Wait()
		evicted("1")
		time.Sleep(time.Second)
		synctest.Wait()
		evicted("11")
		m.Hear(spot(record.PodEvicted, 0, 0))
		stop()
		evicted("12")
	})
}

func TestADiskThatHangsKeepsNobodyFromStopping(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nth.prom")
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		m := metrics.New(metrics.Options{Textfile: file, Waiting: func() int { // It is asked for each time that the file is written.
			<-answers
			return 0
		}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		m.Run(ctx)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s to stop", took)
		}
		close(answers)
	})
}

func TestTheFileIsWrittenEvenIfNothingHappens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nth.prom")
	running(t, metrics.Options{Textfile: file}, func(t *testing.T, _ *metrics.Metrics, _ func()) {
		time.Sleep(46 * time.Second)
		synctest.Wait()
		if got := written(t, file, "nth_healthy"); got != "0" {
			t.Errorf("the file says %q about nth's health, want 0: nothing has moved for long", got)
		}
	})
}

func TestTheFileIsForEverybodyAndHasNothingOfTheProcess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nth.prom")
	running(t, metrics.Options{Textfile: file, Compatible: true}, func(*testing.T, *metrics.Metrics, func()) {})
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o644 {
		t.Errorf("the file is %v (%v), want a regular file of mode 0644", info.Mode(), err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name := range parse(t, string(text)) {
		if !strings.HasPrefix(name, "nth_") {
			t.Errorf("the file has %s, which others may have, too", name)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(entries) != 1 {
		t.Errorf("there is %v beside the file (%v)", entries, err)
	}
}

func TestWhatLiesInTheWayOfTheFileIsNotFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, victim := filepath.Join(dir, "nth.prom"), filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{file, file + ".new"} {
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
	}
	running(t, metrics.Options{Textfile: file}, func(*testing.T, *metrics.Metrics, func()) {})
	if text, err := os.ReadFile(victim); err != nil || string(text) != "mine" {
		t.Errorf("another's file holds %q (%v), want it to be left alone", text, err)
	}
	if got := written(t, file, "nth_dry_run"); got != "0" {
		t.Errorf("the file does not hold the metrics")
	}
}

// troubles are what was told, by whichever goroutine.
type troubles struct {
	mu    sync.Mutex
	texts []string
}

func (t *troubles) tell(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.texts = append(t.texts, err.Error())
}

func (t *troubles) told() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.texts)
}

func TestAFileThatCannotBeWrittenIsToldOnceAndTriedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "later")
	file := filepath.Join(dir, "nth.prom")
	var troubles troubles
	running(t, metrics.Options{Textfile: file, Trouble: troubles.tell}, func(t *testing.T, m *metrics.Metrics, _ func()) {
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		told := troubles.told()
		if len(told) != 1 || !strings.Contains(told[0], "writing metrics: ") || !strings.Contains(told[0], "no such file") {
			t.Errorf("told %q, want once that there is no such file", told)
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		written(t, file, "nth_healthy")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if told := troubles.told(); len(told) != 2 {
			t.Errorf("told %q, want twice, as it went wrong twice", told)
		}
	})
}
