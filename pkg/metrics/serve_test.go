package metrics_test

import (
	"bufio"
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

// await waits until somebody listens and returns the connection, which ends with the test.
func await(t *testing.T, address string) net.Conn {
	t.Helper()
	for {
		if conn, err := net.Dial("tcp", address); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatalf("nobody listens at %s", address)
		}
		runtime.Gosched()
	}
}

// fetch asks a listener for a page, over a connection of its own.
func fetch(t *testing.T, url string) (status int, text string, err error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

func TestAnAddressThatIsInUseIsToldOnceAndTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		address := somewhere()
		occupant, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		var troubles troubles
		m := metrics.New(metrics.Options{Listen: address, Trouble: troubles.tell})
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { m.Run(ctx) })
		defer ended.Wait()
		defer cancel()
		time.Sleep(time.Hour)
		synctest.Wait()
		want := fmt.Sprintf("serving metrics at %s: listen tcp %s: bind: address already in use", address, address)
		if told := troubles.told(); !slices.Equal(told, []string{want}) {
			t.Errorf("told %q, want once %q", told, want)
		}

		if now := m.Troubles(); !slices.Equal(now, []string{want}) {
			t.Errorf("the troubles are %q, want %q", now, want)
		}

		if err := occupant.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // and no longer: while a listener waits, the bubble's clock stands still
		_ = await(t, address).Close()
		status, text, err := fetch(t, "http://"+address+"/metrics")
		if err != nil || status != http.StatusOK || !strings.Contains(text, "nth_build_info") {
			t.Errorf("got %d %q (%v), want the metrics", status, text, err)
		}
		if now := m.Troubles(); len(now) > 0 {
			t.Errorf("once it is free the troubles are %q", now)
		}
	})
}

func TestAnAddressWithoutAHostIsEveryAddressOfTheMachine(t *testing.T) {
	t.Parallel()
	occupant, err := net.Listen("tcp", "127.0.0.1:0") // which leaves no room for every address
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = occupant.Close() }()
	_, port, err := net.SplitHostPort(occupant.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	m := metrics.New(metrics.Options{Listen: ":" + port, Trouble: func(err error) { told <- err }})
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { m.Run(ctx) })
	defer ended.Wait()
	defer cancel()
	if err := <-told; !strings.HasPrefix(err.Error(), "serving metrics at :"+port+": listen tcp :"+port+": ") {
		t.Errorf("does not listen at every address: %v", err)
	}
}

// A client that asks and does not read, or does not even ask, must not keep nth from stopping.
func TestTheListenerEndsWithItsContextWhateverClientsDo(t *testing.T) {
	t.Parallel()
	address := somewhere()
	m := metrics.New(metrics.Options{Listen: address, Trouble: func(err error) { t.Error(err) }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	silent := await(t, address)
	if _, err := io.WriteString(silent, "GET /metrics HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if status, _, err := fetch(t, "http://"+address+"/healthz"); err != nil || status != http.StatusOK {
		t.Errorf("got %d (%v) beside a client that says nothing", status, err)
	}
	cancel()
	<-ended
	if _, _, err := fetch(t, "http://"+address+"/healthz"); err == nil {
		t.Error("somebody answers after the end")
	}
}

// Idle connections have asked for something and keep the connection; slow ones have sent half a request.
func TestListen_answers_beside_idle_and_slow_connections(t *testing.T) {
	address := somewhere()
	m := metrics.New(metrics.Options{Listen: address, Ready: func() error { return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { m.Run(ctx) })
	defer ended.Wait()
	defer cancel()
	occupy := func(count int, sent string, answered bool) {
		for range count {
			conn := await(t, address)
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Fatal(err)
			}
			if !answered {
				continue
			}
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, phase := range []struct {
		name     string
		count    int
		sent     string
		answered bool
	}{
		{"idle", 500, "GET /healthz HTTP/1.1\r\nHost: nth\r\n\r\n", true},
		{"slow", 200, "GET /metrics HTTP/1.1\r\nHost:", false},
		{"readers that never read", 200, "GET /metrics HTTP/1.1\r\nHost: nth\r\n\r\n", false},
	} {
		occupy(phase.count, phase.sent, phase.answered)
		for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
			if status, text, err := fetch(t, "http://"+address+path); err != nil || status != http.StatusOK {
				t.Errorf("beside %s connections, %s answers %d %.80q (%v)", phase.name, path, status, text, err)
			}
		}
	}
}

func TestListen_ClosesConnectionsOfWhoHasMost(t *testing.T) {
	address := somewhere()
	m := metrics.New(metrics.Options{Listen: address})
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { m.Run(ctx) })
	defer ended.Wait()
	defer cancel()
	const request = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
	ask := func(conn net.Conn) {
		t.Helper()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(answer.Body); err != nil {
			t.Fatal(err)
		}
	}
	scraper := await(t, address)
	ask(scraper)
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 300 {
		conn, err := other.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ask(conn)
	}
	ask(scraper)
}

// A request costs the more the longer it waits for the others, also when its client has hung up.
func TestListen_ForgetsRequestsWhoseClientIsGone(t *testing.T) {
	address := somewhere()
	m := metrics.New(metrics.Options{Listen: address})
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { m.Run(ctx) })
	defer ended.Wait()
	defer cancel()
	_ = await(t, address).Close()
	most := 0
	for range 10_000 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n") // It may be closed for another one.
		_ = conn.Close()
		most = max(most, runtime.NumGoroutine())
	}
	if most > 1000 {
		t.Errorf("%d goroutines were there at once, want a few for each of 128 connections", most)
	}
}

func TestHealthIsLostWithTheLoopAndComesBackWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New(metrics.Options{})
		for range 6 {
			time.Sleep(10 * time.Second)
			wantHealth(t, m, "")
			m.Show(state.Status{})
		}
		time.Sleep(31 * time.Second)
		wantHealth(t, m, "the loop that decides has given no sign of life for 31s")
		m.Show(state.Status{})
		wantHealth(t, m, "")
	})
}

func TestHealthIsLostWithASource(t *testing.T) {
	t.Parallel()
	var stuck error
	m := metrics.New(metrics.Options{Stuck: func() error { return stuck }})
	wantHealth(t, m, "")
	stuck = errors.New("looking for spot-interruption: neither an answer nor an error for 1m1s")
	wantHealth(t, m, stuck.Error())
	stuck = nil
	wantHealth(t, m, "")
}

// wantHealth checks what is said about nth's health, in the two ways. trouble "" is none.
func wantHealth(t *testing.T, m *metrics.Metrics, trouble string) {
	t.Helper()
	status, text, healthy := http.StatusOK, "ok\n", 1.0
	if trouble != "" {
		status, text, healthy = http.StatusServiceUnavailable, trouble+"\n", 0
	}
	answer := ask(t, m, "/healthz")
	if answer.Code != status || answer.Body.String() != text {
		t.Errorf("got %d %q, want %d %q", answer.Code, answer.Body, status, text)
	}
	want(t, m, map[string]float64{"nth_healthy": healthy})
}

func TestNothingElseIsServed(t *testing.T) {
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
		m.OnTransition(spot(state.PodEvicted, 0, 0))
		synctest.Wait()
		evicted("1")
		for range 10 { // are not worth writing the file for, each
			m.OnTransition(spot(state.PodEvicted, 0, 0))
		}
		synctest.Wait()
		evicted("1")
		time.Sleep(time.Second)
		synctest.Wait()
		evicted("11")
		m.OnTransition(spot(state.PodEvicted, 0, 0))
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
