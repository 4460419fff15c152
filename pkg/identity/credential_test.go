package identity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

// issuer makes tokens, and is the server that accepts or refuses them.
type issuer struct {
	takes time.Duration // each time
	life  time.Duration // 0 is for ever
	err   error
	// refuses are tokens that the server refuses; "all" is each.
	refuses []string

	mu       sync.Mutex
	made     []time.Time
	replaced int // how often a token was made because the last one was refused
	shown    []string
	bodies   []string
	client   http.RoundTripper
}

func newIssuer(i *issuer) *issuer {
	i.client = identity.Authenticated(i, i.create)
	return i
}

func (i *issuer) create(_ context.Context, refused bool) (string, time.Time, error) {
	time.Sleep(i.takes)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made = append(i.made, time.Now())
	if refused {
		i.replaced++
	}
	if i.err != nil {
		return "", time.Time{}, i.err
	}
	token, expires := fmt.Sprint(len(i.made)), time.Time{}
	if i.life != 0 {
		expires = time.Now().Add(i.life)
	}
	return token, expires, nil
}

// times is when tokens were made.
func (i *issuer) times() []time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.made)
}

// RoundTrip implements http.RoundTripper.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	i.mu.Lock()
	defer i.mu.Unlock()
	i.shown = append(i.shown, token)
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		i.bodies = append(i.bodies, string(body))
	}
	status := http.StatusOK
	if slices.Contains(i.refuses, token) || slices.Contains(i.refuses, "all") {
		status = http.StatusUnauthorized
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(http.StatusText(status)))}, nil
}

// request makes a request and returns its status, with which token it went, and how long it took.
func (i *issuer) request(ctx context.Context) (status int, token string, took time.Duration, err error) {
	began := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://apiserver.test/", nil)
	if err != nil {
		return 0, "", 0, err
	}
	response, err := i.client.RoundTrip(request)
	if err != nil {
		return 0, "", time.Since(began), err
	}
	_ = response.Body.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	return response.StatusCode, i.shown[len(i.shown)-1], time.Since(began), nil
}

// mustShow fails the test unless a request is answered after that time, with that token.
func (i *issuer) mustShow(t *testing.T, want string, after time.Duration) {
	t.Helper()
	if status, token, took, err := i.request(t.Context()); err != nil || took != after || token != want || status != http.StatusOK {
		t.Errorf("status %d with the token %q after %s, %v; want %q after %s", status, token, took, err, want, after)
	}
}

func TestCredential_IsRenewedBeforeItExpires(t *testing.T) {
	for name, c := range map[string]struct {
		life    time.Duration
		renewed map[time.Duration]string // the token that is shown after so long
	}{
		"14 minutes": {14 * time.Minute, map[time.Duration]string{7 * time.Minute: "1", 10 * time.Minute: "2"}},
		"half of it": {4 * time.Minute, map[time.Duration]string{time.Minute: "1", 3 * time.Minute: "2"}},
		"for ever":   {0, map[time.Duration]string{48 * time.Hour: "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := newIssuer(&issuer{takes: 3 * time.Second, life: c.life})
				i.mustShow(t, "1", 3*time.Second)
				began := time.Now()
				for _, after := range slices.Sorted(maps.Keys(c.renewed)) {
					for time.Since(began) < after-time.Minute {
						time.Sleep(time.Minute) // the interval of the warm-ups
						if _, _, took, err := i.request(t.Context()); took != 0 || err != nil {
							t.Fatalf("a request took %s, %v", took, err)
						}
					}
					time.Sleep(time.Until(began.Add(after)))
					i.mustShow(t, c.renewed[after], 0)
				}
			})
		})
	}
}

func TestCredential_ThatIsMadeExpiredIsUsedForAWhile(t *testing.T) {
	for _, life := range []time.Duration{-time.Hour, -1, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			i := newIssuer(&issuer{takes: time.Second, life: life})
			i.mustShow(t, "1", time.Second)
			for range 600 {
				if _, _, took, err := i.request(t.Context()); took != 0 || err != nil {
					t.Fatalf("of %s, a request took %s, %v", life, took, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if n := len(i.times()); n > 12 {
				t.Errorf("of %s, %d were made in a minute", life, n)
			}
		})
	}
}

func TestCredential_RequestsWaitForOneAndNotBeyondTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{takes: 19 * time.Second})
		var waiting sync.WaitGroup
		for range 50 {
			waiting.Go(func() {
				if _, _, took, err := i.request(t.Context()); took != 19*time.Second || err != nil {
					t.Errorf("after %s: %v", took, err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, _, took, err := i.request(ctx)
		if took != 5*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with five seconds, after %s: %v", took, err)
		}
		waiting.Wait()
		if len(i.times()) != 1 {
			t.Errorf("%d were made", len(i.times()))
		}
	})
}

func TestCredential_FailureIsRetriedAfterPausesThatGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{err: errors.New("no credential provider")})
		for range 600 {
			if _, _, took, err := i.request(t.Context()); took != 0 || !errors.Is(err, i.err) || !strings.HasPrefix(err.Error(), "getting credentials: ") {
				t.Fatalf("after %s: %v", took, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(i.times()); n < 7 || n > 14 {
			t.Errorf("it was tried %d times in a minute", n)
		}
		i.err = nil
		time.Sleep(15 * time.Second)
		if _, _, _, err := i.request(t.Context()); err != nil {
			t.Errorf("when it works again: %v", err)
		}
	})
}

func TestCredential_IsUsedUntilItExpiresIfNoOtherCanBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{life: 14 * time.Minute})
		i.mustShow(t, "1", 0)
		i.takes, i.err = 20*time.Second, errors.New("no answer from the metadata service")
		for range 13 {
			time.Sleep(time.Minute)
			i.mustShow(t, "1", 0)
		}
		if len(i.times()) < 5 {
			t.Errorf("another one was asked for %d times", len(i.times())-1)
		}
		time.Sleep(2 * time.Minute)
		if _, token, _, err := i.request(t.Context()); err == nil {
			t.Errorf("after its end it is used: %q", token)
		}
	})
}

func TestCredential_RefusedOneIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{refuses: []string{"1"}})
		i.mustShow(t, "2", 0) // in the same request
		i.mustShow(t, "2", 0)
		if i.replaced != 1 {
			t.Errorf("it was replaced %d times", i.replaced)
		}
		i.refuses = []string{"all"}
		for range 600 {
			if status, _, took, err := i.request(t.Context()); took != 0 || err != nil || status != http.StatusUnauthorized {
				t.Fatalf("status %d after %s: %v", status, took, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(i.times()); n > 16 {
			t.Errorf("a server that refuses everything has %d made in a minute", n)
		}
		i.refuses, i.err = nil, errors.New("the plugin is gone")
		time.Sleep(time.Minute)
		if status, _, _, err := i.request(t.Context()); err != nil || status != http.StatusOK {
			t.Errorf("with one that was refused and no other: status %d, %v", status, err)
		}
	})
}

// A webhook that the API server asks may be away for a moment, and a plugin that asks the same network hang meanwhile.
func TestCredential_RefusedByMistakeIsUsedWhileThePluginHangs(t *testing.T) {
	for within, want := range map[time.Duration]time.Duration{time.Minute: 5 * time.Second, 3 * time.Second: 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			i := newIssuer(&issuer{})
			i.mustShow(t, "1", 0)
			i.takes, i.err, i.refuses = 20*time.Second, errors.New("it has hung and was killed"), []string{"1"}
			first, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, _, took, err := i.request(first); took != time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the request whose token was refused ended after %s: %v", took, err)
			}
			i.refuses = nil
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			if _, token, took, err := i.request(ctx); token != "1" || took > want || err != nil {
				t.Errorf("within %s, the token is %q after %s: %v", within, token, took, err)
			}
			for range 30 { // long after the plugin was killed
				i.mustShow(t, "1", 0)
				time.Sleep(time.Second)
			}
			if n := len(i.times()); n != 2 {
				t.Errorf("for a token that is accepted, others were asked for %d times", n-1)
			}
		})
	}
}

func TestCredential_RequestIsRepeatedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, want := range map[string][]string{"can be read again": {"body", "body"}, "is read once": {"body"}} {
			i := newIssuer(&issuer{refuses: []string{"1"}})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://apiserver.test/", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			if len(want) == 1 {
				request.GetBody = nil
			}
			response, err := i.client.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			said, _ := io.ReadAll(response.Body)
			if refused := response.StatusCode == http.StatusUnauthorized; !slices.Equal(i.bodies, want) || refused != (len(want) == 1) || len(said) == 0 {
				t.Errorf("a body that %s was sent as %q; status %d, %q", name, i.bodies, response.StatusCode, said)
			}
			_ = response.Body.Close()
		}
	})
}
