package ec2_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
)

// wire leads requests to EC2 without a network, so that they take place on the clock of testing/synctest.
type wire struct {
	ec2 ec2test.Service

	mu     sync.Mutex
	dead   int      // how many requests from now on nobody answers
	broken []answer // what the next requests are answered
	tried  int
}

// answer is one that something before EC2 gives, or EC2 when it is broken.
type answer struct {
	status int
	body   string
}

const (
	internal = `<Response><Errors><Error><Code>InternalError</Code><Message>no</Message></Error></Errors><RequestID>1</RequestID></Response>`
	invalid  = `<Response><Errors><Error><Code>InvalidParameterValue</Code><Message>no</Message></Error></Errors><RequestID>1</RequestID></Response>`
	page     = `<html><body>Bad Gateway</body></html>`
)

// Do implements aws.HTTPClient.
func (w *wire) Do(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	dead, broken := w.dead > 0, w.broken
	w.dead--
	w.tried++
	w.broken = broken[min(len(broken), 1):]
	w.mu.Unlock()
	if dead {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	said := httptest.NewRecorder()
	if len(broken) > 0 {
		said.WriteHeader(broken[0].status)
		_, _ = said.WriteString(broken[0].body) // a recorder takes everything
	} else {
		w.ec2.ServeHTTP(said, r)
	}
	return said.Result(), nil
}

func TestAnAnswerIsThereSecondsAfterEC2GivesOne(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		trouble func(*wire)
		want    time.Duration
	}{
		"after a dozen refusals":                 {func(w *wire) { w.ec2.Throttle(12) }, 24 * time.Second},
		"after a connection that does not speak": {func(w *wire) { w.dead = 1 }, 10 * time.Second},
		"after faults of its own": {func(w *wire) {
			w.broken = []answer{{http.StatusInternalServerError, internal}, {http.StatusBadGateway, page}, {http.StatusServiceUnavailable, internal}}
		}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &wire{}
				row.trouble(w)
				w.ec2.Add(ec2test.Instance{ID: "i-1", State: "running"})
				began := time.Now()
				_, known, err := w.catalog().Look(t.Context(), "i-1")
				if took := time.Since(began); err != nil || !known || took > row.want {
					t.Errorf("after %s, want %s at most: %t, %v", took, row.want, known, err)
				}
			})
		})
	}
}

func TestAQuestionIsGivenUpWithWhatWasSaidLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		w.ec2.Throttle(1000)
		const want = "asking EC2 about i-1: api error RequestLimitExceeded: no"
		if _, _, err := w.catalog().Look(t.Context(), "i-1"); err == nil || err.Error() != want {
			t.Errorf("it says %v, want %s", err, want)
		}
	})
}

func TestWhatWillNotPassIsAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{broken: []answer{{http.StatusBadRequest, invalid}}}
		_, _, err := w.catalog().Look(t.Context(), "i-1")
		if want := "asking EC2 about i-1: api error InvalidParameterValue: no"; err == nil || err.Error() != want || w.tried != 1 {
			t.Errorf("after %d requests it says %v, want %s", w.tried, err, want)
		}
	})
}

func TestWhoAsksAnewIsToldHowThingsStandNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		w.ec2.Add(ec2test.Instance{ID: "i-1", State: "stopped"})
		catalog := w.catalog()
		state := func(look func() (ec2.Instance, bool, error)) string {
			t.Helper()
			found, _, err := look()
			if err != nil {
				t.Fatal(err)
			}
			return found.State
		}
		before := state(func() (ec2.Instance, bool, error) { return catalog.Look(t.Context(), "i-1") })
		w.ec2.Enter("i-1", "running")
		remembered := state(func() (ec2.Instance, bool, error) { return catalog.Look(t.Context(), "i-1") })
		now := state(func() (ec2.Instance, bool, error) { return catalog.LookAnew(t.Context(), "i-1") })
		after := state(func() (ec2.Instance, bool, error) { return catalog.Look(t.Context(), "i-1") })
		if before != "stopped" || remembered != "stopped" || now != "running" || after != "running" {
			t.Errorf("it is %s, then %s by heart, %s when asked anew, and %s by heart", before, remembered, now, after)
		}
	})
}

func TestTheInstancesOfAGroupAreAskedForOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		w.ec2.Add(
			ec2test.Instance{ID: "i-1", State: "running", Tags: inGroup("workers")},
			ec2test.Instance{ID: "i-2", State: "running", Tags: inGroup("workers")},
			ec2test.Instance{ID: "i-3", State: "running", Tags: inGroup("others")},
			ec2test.Instance{ID: "i-4", State: "running"},
		)
		catalog := w.catalog()
		var all sync.WaitGroup
		for group, want := range map[string]int{"workers": 2, "others": 1, "empty": 0} {
			for range 20 {
				all.Go(func() {
					if ids, err := catalog.InGroup(t.Context(), group); err != nil || len(ids) != want {
						t.Errorf("%s has %v (%v), want %d", group, ids, err, want)
					}
				})
			}
		}
		all.Wait()
		if asked := w.ec2.Asked(); len(asked) != 1 {
			t.Errorf("EC2 was asked %v", asked)
		}
	})
}

func (w *wire) catalog() *ec2.Catalog {
	return ec2.New(ec2.Options{AWS: aws.Config{Region: "eu-central-1", HTTPClient: w, Credentials: credentials}})
}
