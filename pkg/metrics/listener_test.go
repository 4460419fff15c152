package metrics_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/metrics"
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
