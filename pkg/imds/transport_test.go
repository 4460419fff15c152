package imds_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// await waits until a condition holds, and gives up only when the test is as good as hung.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: it did not come", what)
		}
	}
}

// poll runs a source on the host's network until the test ends.
func poll(t *testing.T, opts imds.Options) *sink {
	t.Helper()
	if opts.UrgentInterval == 0 {
		opts.UrgentInterval, opts.RebalanceInterval, opts.MaintenanceInterval = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
	}
	source := newSource(t, opts)
	ctx, cancel := context.WithCancel(t.Context())
	found := &sink{}
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx, found) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
	return found
}

// The faults that only a real network has. Each is held until it was met several times, and then lifted.
func TestNetworkFaultsAreOutlived(t *testing.T) {
	for name, test := range map[string]struct {
		fault func(conn net.Conn)
		want  string
	}{
		"reset":              {reset, "connection reset by peer"},
		"closed at once":     {func(net.Conn) {}, "EOF"},
		"no HTTP":            {say("SSH-2.0-OpenSSH_9.9\r\n"), "malformed HTTP"},
		"cut off":            {say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"act"), "unexpected EOF"},
		"endless body":       {sayForEver("HTTP/1.1 200 OK\r\n\r\n", " "), "longer than 4 KiB"},
		"endless header":     {sayForEver("HTTP/1.1 200 OK\r\n", "X-More: and more\r\n"), "header"},
		"compressed garbage": {say("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"), "decoding 2 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var faulty atomic.Bool
			faulty.Store(true)
			ec2 := serve(map[string]string{spotPath: announced[spotPath], lifeCyclePath: "spot"})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if faulty.Load() && strings.HasSuffix(r.URL.Path, spotPath) {
					hijack(t, w, test.fault)
					return
				}
				ec2.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			opts := spotOnly
			opts.Endpoint = server.URL
			sink := poll(t, opts)
			outlive(t, sink, test.want, func() { faulty.Store(false) })
		})
	}
}

func TestWhatIsSaidBeforeTheAnswerIsPassedOver(t *testing.T) {
	t.Parallel()
	ec2 := serve(map[string]string{lifeCyclePath: "spot"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, spotPath) {
			notice := announced[spotPath]
			hijack(t, w, say(fmt.Sprintf("HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(notice), notice)))
			return
		}
		ec2.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	opts := spotOnly
	opts.Endpoint = server.URL
	awaitEvents(t, poll(t, opts), map[event.Kind]int{event.SpotInterruption: 1})
}

// An endpoint of one's own may speak HTTPS, and is then who it says, or nobody.
func TestAnEndpointWithHTTPSHasToProveItself(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(serve(announced))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that the client ends
	server.StartTLS()
	t.Cleanup(server.Close)
	opts := spotOnly
	opts.Endpoint = server.URL
	sink := poll(t, opts)
	await(t, "trouble", func() bool {
		_, troubles := sink.of(event.SpotInterruption)
		return slices.ContainsFunc(troubles, func(d delivery) bool { return strings.Contains(d.err.Error(), "certificate") })
	})
}

func TestServiceThatListensLateIsOutlived(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	opts := spotOnly
	opts.Endpoint = "http://" + address
	outlive(t, poll(t, opts), "connection refused", func() {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Skipf("somebody else has taken %s: %v", address, err)
		}
		server := httptest.NewUnstartedServer(serve(map[string]string{spotPath: announced[spotPath]}))
		_ = server.Listener.Close()
		server.Listener = listener
		server.Start()
		t.Cleanup(server.Close)
	})
}

// outlive waits for the same trouble several times and without a snapshot, lifts the fault, and waits for the notice.
func outlive(t *testing.T, sink *sink, want string, lift func()) {
	t.Helper()
	await(t, "trouble", func() bool {
		_, troubles := sink.of(event.SpotInterruption)
		return len(troubles) >= 5
	})
	snapshots, troubles := sink.of(event.SpotInterruption)
	if len(snapshots) > 0 {
		t.Errorf("got %d snapshots while the fault was held", len(snapshots))
	}
	var words []string
	for _, trouble := range troubles {
		words = append(words, trouble.err.Error())
	}
	if words = slices.Compact(words); len(words) != 1 || !strings.Contains(words[0], want) {
		t.Errorf("got trouble %q, want always the same, with %q in it", words, want)
	}
	lift()
	await(t, "the notice", func() bool {
		events, _ := sink.last(event.SpotInterruption)
		return len(events) == 1
	})
}

// hijack takes the connection of a request over.
func hijack(t *testing.T, w http.ResponseWriter, f func(net.Conn)) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		t.Errorf("hijacking a connection: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	f(conn)
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

func say(text string) func(net.Conn) {
	return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
}

// sayForEver says the first text and then the other until nobody listens.
func sayForEver(first, then string) func(net.Conn) {
	return func(conn net.Conn) {
		_, err := io.WriteString(conn, first)
		for chunk := strings.Repeat(then, 1000); err == nil; {
			_, err = io.WriteString(conn, chunk)
		}
	}
}

// A redirect would carry the session token to whoever is named.
func TestTokenIsNeverCarriedElsewhere(t *testing.T) {
	var strays atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strays.Add(1) }))
	t.Cleanup(elsewhere.Close)
	ec2 := serve(nil)
	ec2.say(spotPath, answer{status: http.StatusTemporaryRedirect, header: http.Header{"Location": {elsewhere.URL}}})
	server := httptest.NewServer(ec2)
	t.Cleanup(server.Close)
	opts := spotOnly
	opts.Endpoint = server.URL
	sink := poll(t, opts)
	await(t, "trouble", func() bool {
		_, troubles := sink.of(event.SpotInterruption)
		return len(troubles) >= 3
	})
	if n := strays.Load(); n > 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

// What the SDK would read from its environment must not change what is asked.
func TestEnvironmentDisablesNothing(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_EC2_METADATA_V1_DISABLED", "false")
	server := httptest.NewServer(serve(announced))
	t.Cleanup(server.Close)
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.URL)
	opts := spotOnly
	source, err := imds.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	found := &sink{}
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx, found) }()
	await(t, "the notice", func() bool {
		events, _ := found.last(event.SpotInterruption)
		return len(events) == 1
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(fmt.Errorf("Run: %w", err))
	}
}

const (
	byIPv4 = "169.254.169.254:80"
	byIPv6 = "[fd00:ec2::254]:80"
)

// routes are a machine's ways to the service: to an address that is not up there is no connection, after so long.
type routes struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex
	down  map[string]time.Duration
	tried []string // the addresses that were dialed
}

func (r *routes) set(down map[string]time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.tried = down, nil
}

// dialed counts the attempts at an address since the routes were set.
func (r *routes) dialed(address string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(r.tried), func(a string) bool { return a != address }))
}

func (r *routes) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	r.mu.Lock()
	r.tried = append(r.tried, address)
	lost, down := r.down[address]
	r.mu.Unlock()
	if !down {
		return r.dial(ctx, network, address)
	}
	select {
	case <-time.After(lost):
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ENETUNREACH}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// onRoutes runs a source that was told no endpoint on a machine with these routes.
func onRoutes(t *testing.T, opts imds.Options, down map[string]time.Duration, f func(t *testing.T, ways *routes, sink *sink)) {
	t.Helper()
	opts.BootID = "boot-1"
	ec2 := serve(announced)
	ec2.say(lifeCyclePath, answer{body: "spot"})
	inBubble(t, imds.Options{}, ec2, func(t *testing.T, stand *imds.Source) {
		source, err := imds.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		ways := &routes{dial: stand.Dialed(), down: down}
		source.DialWith(ways.Dial)
		run(t, source, func(t *testing.T, sink *sink) { f(t, ways, sink) })
	})
}

func TestTheServiceIsFoundAtWhicheverOfItsAddressesAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		mode          string
		down          map[string]time.Duration
		asked, silent string
	}{
		"a machine with both":                        {"", nil, byIPv4, byIPv6},
		"without IPv4":                               {"", map[string]time.Duration{byIPv4: 0}, byIPv6, ""},
		"without IPv4, of which nothing is heard":    {"", map[string]time.Duration{byIPv4: 500 * time.Millisecond}, byIPv6, ""},
		"without IPv6":                               {"", map[string]time.Duration{byIPv6: 0}, byIPv4, byIPv6},
		"a machine with both, told to use IPv6":      {"IPv6", nil, byIPv6, byIPv4},
		"a machine with both, told to use IPv4":      {"ipv4", nil, byIPv4, byIPv6},
		"without IPv4, told in capitals to use IPv6": {"IPV6", map[string]time.Duration{byIPv4: 0}, byIPv6, byIPv4},
	} {
		t.Run(name, func(t *testing.T) {
			onRoutes(t, imds.Options{EndpointMode: test.mode}, test.down, func(t *testing.T, ways *routes, sink *sink) {
				time.Sleep(2 * time.Second)
				for _, kind := range imdsKinds {
					if events, _ := sink.last(kind); len(events) != 1 {
						t.Errorf("%s: got %v", kind, events)
					}
				}
				if n := ways.dialed(test.silent); test.silent != "" && n > 0 {
					t.Errorf("%s was dialed %d times", test.silent, n)
				}
				ways.set(test.down)
				time.Sleep(time.Minute)
				for _, address := range []string{byIPv4, byIPv6} {
					if n := ways.dialed(address); (n > 0) != (address == test.asked) {
						t.Errorf("%s was dialed %d times after the first answer", address, n)
					}
				}
				if _, troubles := sink.of(event.SpotInterruption); len(troubles) > 0 {
					t.Errorf("trouble: %v", troubles[0].err)
				}
			})
		})
	}
}

func TestSource_AnAddressThatIsLostIsLeftAtOnceAndForGood(t *testing.T) {
	onRoutes(t, imds.Options{}, nil, func(t *testing.T, ways *routes, sink *sink) {
		time.Sleep(time.Minute)
		for _, lost := range []string{byIPv4, byIPv6} {
			ways.set(map[string]time.Duration{lost: 0})
			time.Sleep(10 * time.Second)
			ways.set(nil) // both are there again
			time.Sleep(time.Minute)
			if n := ways.dialed(lost); n > 0 {
				t.Errorf("it went back to %s though the other answers: dialed %d times", lost, n)
			}
		}
		if _, troubles := sink.of(event.SpotInterruption); len(troubles) > 0 {
			t.Errorf("trouble: %v", troubles[0].err)
		}
	})
}

func TestAnOutageAtBothAddressesIsNamedWithBoth(t *testing.T) {
	down := map[string]time.Duration{byIPv4: 0, byIPv6: 0}
	onRoutes(t, imds.Options{}, down, func(t *testing.T, ways *routes, sink *sink) {
		time.Sleep(5 * time.Second)
		_, troubles := sink.of(event.SpotInterruption)
		if len(troubles) == 0 {
			t.Fatal("no trouble")
		}
		want := "cannot be reached at 169.254.169.254 (dial: network is unreachable), nor at [fd00:ec2::254] (dial: network is unreachable)"
		if text := troubles[0].err.Error(); !strings.Contains(text, want) {
			t.Errorf("trouble %q, want it to say %q", text, want)
		}
		ways.set(map[string]time.Duration{byIPv4: 0})
		time.Sleep(time.Second + 10*time.Millisecond)
		if events, _ := sink.last(event.SpotInterruption); len(events) != 1 {
			t.Error("the notice was not seen within a second")
		}
	})
}
