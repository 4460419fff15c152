package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/metrics"
	"github.com/nth-project/nth/pkg/state"
)

// somewhere is an address of the loopback network that nobody else has.
func somewhere() string {
	return fmt.Sprintf("127.%d.%d.%d:9092", 1+rand.N(254), rand.N(256), 1+rand.N(254))
}

// run runs m until stop is called, at the latest at the end of the test.
func run(t *testing.T, m *metrics.Metrics) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { m.Run(ctx) })
	stop = func() { cancel(); ended.Wait() }
	t.Cleanup(stop)
	return stop
}

// await waits until something listens and returns a connection, which ends with the test.
func await(t *testing.T, address string, from net.Dialer) net.Conn {
	t.Helper()
	for {
		if conn, err := from.Dial("tcp", address); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatalf("nothing listens at %s", address)
		}
		runtime.Gosched()
	}
}

// fetch asks a listener for a page, over a connection of its own.
func fetch(url string) (status int, text string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

func TestListen_ReportsAnAddressInUseOnceAndTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		address := somewhere()
		occupant, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		faults := make(chan error, 100)
		m := metrics.New(metrics.Options{Listen: address, Trouble: func(err error) { faults <- err }})
		defer run(t, m)()
		time.Sleep(time.Hour)
		synctest.Wait()
		want := fmt.Sprintf("serving metrics at %s: listen tcp %s: bind: address already in use", address, address)
		if now := m.Troubles(); len(faults) != 1 || (<-faults).Error() != want || !slices.Equal(now, []string{want}) {
			t.Errorf("%d more faults were reported, and shown is %q, want once %q", len(faults), now, want)
		}
		if err := occupant.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // and no longer: while a listener waits, the bubble's clock stands still
		_ = await(t, address, net.Dialer{}).Close()
		status, text, err := fetch("http://" + address + "/metrics")
		if err != nil || status != http.StatusOK || !strings.Contains(text, "nth_build_info") || len(m.Troubles()) > 0 {
			t.Errorf("got %d %q (%v) and %q, want the metrics", status, text, err, m.Troubles())
		}
	})
}

// Slow connections have sent half a request, or never read the answer.
func TestListen_AnswersBesideSlowConnectionsAndEnds(t *testing.T) {
	address := somewhere()
	stop := run(t, metrics.New(metrics.Options{Listen: address, Ready: func() error { return nil }}))
	for _, sent := range []string{"GET /metrics HTTP/1.1\r\nHost:", "GET /metrics HTTP/1.1\r\nHost: nth\r\n\r\n"} {
		for range 40 {
			if _, err := io.WriteString(await(t, address, net.Dialer{}), sent); err != nil {
				t.Fatal(err)
			}
		}
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if status, text, err := fetch("http://" + address + path); err != nil || status != http.StatusOK {
				t.Errorf("beside slow connections, %s answers %d %.80q (%v)", path, status, text, err)
			}
		}
	}
	stop()
	if _, _, err := fetch("http://" + address + "/healthz"); err == nil {
		t.Error("it answers after the end")
	}
}

func TestHandler_ServesMetricsAndProbesOnly(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{})
	for _, path := range []string{"/", "/debug/pprof/", "/metrics/x", "/readyz"} {
		if answer := ask(t, m, path); answer.Code != http.StatusNotFound {
			t.Errorf("%s: got %d, want 404", path, answer.Code)
		}
	}
	if kind := ask(t, m, "/metrics").Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("the content type is %q", kind)
	}
}

// What is stuck is neither healthy nor ready; what waits for another is healthy.
func TestHandler_AnswersProbes(t *testing.T) {
	t.Parallel()
	stuck, away := errors.New("receiving from the queue: no answer for 91s"), errors.New("nothing was received from the queue yet")
	for name, test := range map[string]struct {
		stuck, away error
		silence     time.Duration // of the loop
		health      string        // "" is healthy
		readiness   string
	}{
		"well":                 {silence: 30 * time.Second},
		"the loop is silent":   {silence: 31 * time.Second, health: "the main loop hangs: no progress for 31s"},
		"a source is stuck":    {stuck: stuck, health: stuck.Error()},
		"a dependency is away": {away: away, readiness: away.Error()},
		"both stuck, and away": {stuck: stuck, away: away, health: stuck.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := metrics.New(metrics.Options{
					Stuck: func() error { return test.stuck }, Ready: func() error { return test.away },
					Leader: func() string { return "the leader is a" },
				})
				time.Sleep(time.Hour)
				m.Show(state.Status{})
				time.Sleep(test.silence)
				for path, fault := range map[string]string{"/healthz": test.health, "/readyz": test.health + test.readiness} {
					code, text := http.StatusOK, "ok\nthe leader is a"
					if fault != "" {
						code, text = http.StatusServiceUnavailable, fault
					}
					if answer := ask(t, m, path); answer.Code != code || answer.Body.String() != text+"\n" {
						t.Errorf("%s answers %d %q, want %d %q", path, answer.Code, answer.Body, code, text)
					}
				}
				healthy := 1.0
				if test.health != "" {
					healthy = 0
				}
				want(t, m, map[string]float64{"nth_healthy": healthy})
			})
		})
	}
}

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

func TestTextfile_IsWrittenAtOnceRegularlyAndAtTheEnd(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nth.prom")
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{Textfile: file})
		stop := run(t, m)
		evicted := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := written(t, file, "nth_pods_evicted_total"); got != want {
				t.Errorf("the file has %q pods evicted, want %q", got, want)
			}
		}
		evicted("0")
		m.OnTransition(spot(state.PodEvicted))
		time.Sleep(5 * time.Second)
		evicted("1")
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := written(t, file, "nth_healthy"); got != "0" {
			t.Errorf("the file says %q about nth's health, want 0: the loop is silent", got)
		}
		m.OnTransition(spot(state.PodEvicted))
		stop()
		evicted("2")
	})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name := range parse(t, string(text)) {
		if !strings.HasPrefix(name, "nth_") {
			t.Errorf("the file has %s, which others may have, too", name)
		}
	}
}

// The directory is missing at first, and again later; in between, the file is another's link.
func TestTextfile_ReportsAFaultOnceAndReplacesALink(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir, victim := filepath.Join(root, "later"), filepath.Join(root, "victim")
	file := filepath.Join(dir, "nth.prom")
	synctest.Test(t, func(t *testing.T) {
		faults := make(chan error, 100)
		run(t, metrics.New(metrics.Options{Textfile: file, Trouble: func(err error) { faults <- err }}))
		wantFaults := func(count int) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if len(faults) != count {
				t.Errorf("%d faults were reported, want %d", len(faults), count)
			}
		}
		wantFaults(1)
		if err := (<-faults).Error(); !strings.HasPrefix(err, "writing metrics to "+file+": ") || !strings.Contains(err, "no such file") {
			t.Errorf("reported is %q", err)
		}
		for _, err := range []error{os.WriteFile(victim, []byte("mine"), 0o600), os.Mkdir(dir, 0o755), os.Symlink(victim, file)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		wantFaults(0)
		if got := written(t, file, "nth_dry_run"); got != "0" {
			t.Errorf("the file does not hold the metrics")
		}
		if text, err := os.ReadFile(victim); err != nil || string(text) != "mine" {
			t.Errorf("another's file holds %q (%v), want it to be left alone", text, err)
		}
		if info, err := os.Lstat(file); err != nil || info.Mode() != 0o644 {
			t.Errorf("the file is %v (%v), want a regular file of mode 0644", info.Mode(), err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		wantFaults(1)
	})
}
