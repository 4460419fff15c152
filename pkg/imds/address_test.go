package imds_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

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

func TestAnAddressThatHasAnsweredIsLeftOnlyIfItIsLostForLong(t *testing.T) {
	onRoutes(t, imds.Options{}, nil, func(t *testing.T, ways *routes, sink *sink) {
		time.Sleep(time.Minute)
		ways.set(map[string]time.Duration{byIPv4: 0})
		time.Sleep(9 * time.Second)
		if n := ways.dialed(byIPv6); n > 0 {
			t.Fatalf("it was left within nine seconds: the other was dialed %d times", n)
		}
		time.Sleep(3 * time.Second)
		if ways.dialed(byIPv6) == 0 {
			t.Fatal("it was not left though no connection can be made to it")
		}
		ways.set(nil) // both are there again
		time.Sleep(time.Minute)
		if n := ways.dialed(byIPv4); n > 0 {
			t.Errorf("it went back though the other answers: dialed %d times", n)
		}
		ways.set(map[string]time.Duration{byIPv6: 0})
		time.Sleep(12 * time.Second)
		began := time.Now()
		time.Sleep(10 * time.Second)
		if late := sink.troublesSince(event.SpotInterruption, began); len(late) > 0 {
			t.Errorf("the way back was not found: %v", late[0].err)
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
