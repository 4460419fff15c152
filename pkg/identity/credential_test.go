package identity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

// A desk is where tokens are made, and the server that looks at them.
type desk struct {
	takes time.Duration // each time
	life  time.Duration // 0 is for ever
	err   error
	// refuses are tokens that the server does not believe.
	refuses []string

	mu      sync.Mutex
	made    []time.Time
	refused int // how often it was said that the last one was refused
	shown   []string
	bodies  []string
	open    int // refusals that nobody has closed
	early   int // credentials that were asked for meanwhile
	road    http.RoundTripper
}

// refusal is how the server says that it does not believe a token.
const refusal = "who are you?"

// A refusedBody is what it says, until it is closed.
type refusedBody struct {
	io.Reader
	closed func()
}

func (a refusedBody) Close() error {
	a.closed()
	return nil
}

func newDesk(d *desk) *desk {
	d.road = identity.Authenticated(d, d.fetch)
	return d
}

func (d *desk) fetch(_ context.Context, refused bool) (string, time.Time, error) {
	time.Sleep(d.takes)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made = append(d.made, time.Now())
	if d.open > 0 {
		d.early++
	}
	if refused {
		d.refused++
	}
	if d.err != nil {
		return "", time.Time{}, d.err
	}
	token, expires := fmt.Sprint(len(d.made)), time.Time{}
	if d.life != 0 {
		expires = time.Now().Add(d.life)
	}
	return token, expires, nil
}

// times is when credentials were made.
func (d *desk) times() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.made)
}

// RoundTrip implements http.RoundTripper.
func (d *desk) RoundTrip(r *http.Request) (*http.Response, error) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown = append(d.shown, token)
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		d.bodies = append(d.bodies, string(body))
	}
	if !slices.Contains(d.refuses, token) && !slices.Contains(d.refuses, "all") {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	}
	d.open++
	said := refusedBody{strings.NewReader(refusal + strings.Repeat(".", 100<<10)), sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open--
	})}
	return &http.Response{StatusCode: http.StatusUnauthorized, Body: said}, nil
}

// ask makes a request and tells which token it went with, and how long it took.
func (d *desk) ask(t *testing.T) (token string, took time.Duration, err error) {
	t.Helper()
	return d.askWithin(t.Context())
}

func (d *desk) askWithin(ctx context.Context) (token string, took time.Duration, err error) {
	began := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://apiserver.test/", nil)
	if err != nil {
		return "", 0, err
	}
	response, err := d.road.RoundTrip(request)
	if err != nil {
		return "", time.Since(began), err
	}
	_ = response.Body.Close() // it is empty
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shown[len(d.shown)-1], time.Since(began), nil
}

// mustShow fails the test unless a request goes at once, with that token.
func (d *desk) mustShow(t *testing.T, want string) {
	t.Helper()
	if token, took, err := d.ask(t); err != nil || took != 0 || token != want {
		t.Errorf("the token is %q after %s, %v; want %q at once", token, took, err, want)
	}
}

func TestACredentialIsReplacedBeforeItExpiresBesideTheRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{takes: 3 * time.Second, life: 14 * time.Minute})
		if _, took, err := d.ask(t); took != 3*time.Second || err != nil {
			t.Fatalf("the first request took %s, %v", took, err)
		}
		time.Sleep(7 * time.Minute)
		d.mustShow(t, "1")
		time.Sleep(2 * time.Minute) // and nobody asks for anything
		d.mustShow(t, "2")
		if got := d.times()[1].Sub(d.times()[0]); got != 8*time.Minute+3*time.Second {
			t.Errorf("the second one was there after %s", got)
		}
	})
}

func TestACredentialThatLivesForAMomentIsReplacedWhenItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{takes: time.Second, life: 10 * time.Second})
		if _, _, err := d.ask(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if len(d.times()) != 1 {
			t.Errorf("%d were made though nobody asked for any", len(d.times()))
		}
		if token, took, err := d.ask(t); token != "2" || took != time.Second || err != nil {
			t.Errorf("the token is %q after %s, %v", token, took, err)
		}
	})
}

func TestACredentialThatLiesAboutItsEndIsShownForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, life := range []time.Duration{-time.Hour, -1, time.Second} {
			d := newDesk(&desk{takes: time.Second, life: life})
			if _, took, err := d.ask(t); took != time.Second || err != nil {
				t.Errorf("of %s, the first request took %s, %v", life, took, err)
			}
			for range 600 {
				if _, took, err := d.ask(t); took != 0 || err != nil {
					t.Fatalf("of %s, a request took %s, %v", life, took, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if n := len(d.times()); n > 12 {
				t.Errorf("of %s, %d were made in a minute", life, n)
			}
			d.refuses = []string{"all"}
			n := len(d.times())
			if _, took, err := d.ask(t); took > 2*time.Second || err != nil || len(d.times()) == n {
				t.Errorf("of %s, a request whose token is refused took %s, %v, and had no other made", life, took, err)
			}
		}
	})
}

func TestACredentialThatNobodyUsesIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{life: 10 * time.Minute})
		if _, _, err := d.ask(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if len(d.times()) > 4 {
			t.Errorf("%d were made in a day in which nobody asked for any", len(d.times()))
		}
	})
}

func TestACredentialWithoutAnEndIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{})
		for range 48 {
			d.mustShow(t, "1")
			time.Sleep(time.Hour)
		}
	})
}

func TestManyRequestsWaitForOneCredentialAndNoneBeyondItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{takes: 19 * time.Second})
		var waiting sync.WaitGroup
		for range 50 {
			waiting.Go(func() {
				if _, took, err := d.ask(t); took != 19*time.Second || err != nil {
					t.Errorf("after %s: %v", took, err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, took, err := d.askWithin(ctx)
		if took != 5*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with five seconds, after %s: %v", took, err)
		}
		waiting.Wait()
		if len(d.times()) != 1 {
			t.Errorf("%d were made", len(d.times()))
		}
	})
}

func TestAFailureIsRepeatedAfterPausesThatGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{err: errors.New("no credential provider")})
		for range 600 {
			if _, took, err := d.ask(t); took != 0 || !errors.Is(err, d.err) || !strings.HasPrefix(err.Error(), "getting credentials: ") {
				t.Fatalf("after %s: %v", took, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(d.times()); n < 7 || n > 14 {
			t.Errorf("it was tried %d times in a minute", n)
		}
		d.err = nil
		time.Sleep(15 * time.Second)
		if _, _, err := d.ask(t); err != nil {
			t.Errorf("when it works again: %v", err)
		}
	})
}

func TestAnOldCredentialIsUsedWhileNoOtherCanBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{life: 14 * time.Minute})
		d.mustShow(t, "1")
		d.takes, d.err = 20*time.Second, errors.New("no answer from the metadata service")
		for range 13 {
			time.Sleep(time.Minute)
			d.mustShow(t, "1")
		}
		if len(d.times()) < 10 {
			t.Errorf("another one was asked for %d times", len(d.times())-1)
		}
		time.Sleep(2 * time.Minute)
		if token, _, err := d.ask(t); err == nil {
			t.Errorf("after its end it is used: %q", token)
		}
	})
}

func TestACredentialThatIsRefusedIsAskedForAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{refuses: []string{"1"}})
		d.mustShow(t, "2") // once more, in the same request
		d.mustShow(t, "2")
		if d.refused != 1 {
			t.Errorf("it was said %d times that one was refused", d.refused)
		}
		d.refuses = []string{"all"}
		for range 600 {
			if _, took, err := d.ask(t); took != 0 || err != nil {
				t.Fatalf("after %s: %v", took, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(d.times()); n > 16 {
			t.Errorf("a server that refuses everything has %d made in a minute", n)
		}
		d.refuses = nil
		d.err = errors.New("the plugin is gone")
		time.Sleep(time.Minute)
		if _, _, err := d.ask(t); err != nil {
			t.Errorf("with one that was refused and no other: %v", err)
		}
	})
}

func TestARefusalIsReadBeforeAnotherCredentialIsAskedForAndStandsIfThereIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{})
		d.mustShow(t, "1")
		d.refuses, d.err = []string{"1"}, errors.New("the plugin is gone")
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://apiserver.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := d.road.RoundTrip(request)
		if err != nil || response.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%+v, %v", response, err)
		}
		said, err := io.ReadAll(response.Body)
		if err != nil || !strings.HasPrefix(string(said), refusal) || int64(len(said)) != response.ContentLength || len(said) > 64<<10 {
			t.Errorf("it is told with %d bytes of %d, %v: %.20s", len(said), response.ContentLength, err, said)
		}
		if d.early != 0 || d.open != 0 {
			t.Errorf("%d were asked for while a refusal was unread, of which %d still are", d.early, d.open)
		}
	})
}

// A webhook that the API server asks may be away for a moment, and a plugin that asks the same network hang meanwhile.
func TestAGoodTokenThatWasRefusedOnceIsShownWhileThePluginHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(&desk{})
		d.mustShow(t, "1")
		d.takes, d.err, d.refuses = 20*time.Second, errors.New("it has hung and was killed"), []string{"1"}
		first, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		if _, took, err := d.askWithin(first); took != 6*time.Second || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the request whose token was refused ended after %s: %v", took, err)
		}
		d.refuses = nil
		for range 30 { // long after the plugin was killed
			d.mustShow(t, "1")
			time.Sleep(time.Second)
		}
		if n := len(d.times()); n != 2 {
			t.Errorf("for a token that is believed, others were asked for %d times", n-1)
		}
	})
}

func TestARequestGoesWithATokenThatWasRefusedWhereNoOtherComesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for within, want := range map[time.Duration]time.Duration{time.Minute: 5 * time.Second, 3 * time.Second: 3 * time.Second} {
			d := newDesk(&desk{})
			d.mustShow(t, "1")
			d.takes, d.err, d.refuses = 20*time.Second, errors.New("it has hung and was killed"), []string{"1"}
			unread, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://apiserver.test/", io.NopCloser(strings.NewReader("read once")))
			if err != nil {
				t.Fatal(err)
			}
			if response, err := d.road.RoundTrip(unread); err != nil || response.StatusCode != http.StatusUnauthorized {
				t.Fatalf("%+v, %v", response, err)
			}
			d.refuses = nil
			ctx, cancel := context.WithTimeout(t.Context(), within)
			if token, took, err := d.askWithin(ctx); token != "1" || took != want || err != nil {
				t.Errorf("within %s, the token is %q after %s: %v", within, token, took, err)
			}
			cancel()
			time.Sleep(time.Minute) // the plugin has ended
		}
	})
}

func TestARequestWhoseTokenIsRefusedIsMadeAgainWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, want := range map[string][]string{"can be read again": {"what is asked", "what is asked"}, "is read once": {"what is asked"}} {
			d := newDesk(&desk{refuses: []string{"1"}})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://apiserver.test/", strings.NewReader("what is asked"))
			if err != nil {
				t.Fatal(err)
			}
			if len(want) == 1 {
				request.GetBody = nil
			}
			response, err := d.road.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close() // it is empty
			if refused := response.StatusCode == http.StatusUnauthorized; !slices.Equal(d.bodies, want) || refused != (len(want) == 1) {
				t.Errorf("a body that %s was sent as %q; status %d", name, d.bodies, response.StatusCode)
			}
		}
	})
}
