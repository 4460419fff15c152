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

	mu     sync.Mutex
	made   []time.Time
	shown  []string
	bodies []string
	client http.RoundTripper
}

func newIssuer(i *issuer) *issuer {
	i.client = identity.Authenticated(i, i.create)
	return i
}

func (i *issuer) create() (string, time.Time, error) {
	time.Sleep(i.takes)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made = append(i.made, time.Now())
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

// A drain makes hundreds of requests; a plugin is not run for each, whatever goes wrong.
func TestCredential_IsMadeEveryTenSecondsAtMost(t *testing.T) {
	for name, i := range map[string]*issuer{
		"it fails":              {err: errors.New("no credential provider")},
		"it is expired at once": {life: -time.Hour},
		"it expires soon":       {life: time.Second},
		"it is refused":         {refuses: []string{"all"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			newIssuer(i)
			for range 600 {
				status, _, took, err := i.request(t.Context())
				if took != 0 || !errors.Is(err, i.err) || err == nil && (status == http.StatusOK) == (i.refuses != nil) {
					t.Fatalf("%s: status %d after %s: %v", name, status, took, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if n := len(i.times()); n < 4 || n > 6 {
				t.Errorf("%s: %d were made in a minute", name, n)
			}
			i.err, i.refuses, i.life = nil, nil, 0
			time.Sleep(10 * time.Second)
			if status, _, _, err := i.request(t.Context()); err != nil || status != http.StatusOK {
				t.Errorf("%s: when it works again: status %d, %v", name, status, err)
			}
		})
	}
}

func TestCredential_IsUsedUntilItExpiresIfNoOtherCanBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(&issuer{life: 14 * time.Minute})
		i.mustShow(t, "1", 0)
		i.takes, i.err = 20*time.Second, errors.New("the plugin hung and was killed")
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

func TestCredential_RefusedOneIsReplacedInTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, want := range map[string][]string{"can be read again": {"body", "body"}, "is read once": {"body"}} {
			i := newIssuer(&issuer{})
			i.mustShow(t, "1", 0)
			i.refuses = []string{"1"}
			time.Sleep(time.Minute)
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
