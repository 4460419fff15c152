package role_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/role"
)

// answering is an HTTP client whose answers have that Date.
type answering string

// Do implements aws.HTTPClient.
func (a answering) Do(*http.Request) (*http.Response, error) {
	return &http.Response{Header: http.Header{"Date": {string(a)}}}, nil
}

func TestClock_FollowsTheDateOfAWS(t *testing.T) {
	for name, row := range map[string]struct {
		date  string
		ahead time.Duration
	}{
		"ahead":   {time.Now().Add(10 * time.Minute).UTC().Format(http.TimeFormat), 10 * time.Minute},
		"behind":  {time.Now().Add(-10 * time.Minute).UTC().Format(http.TimeFormat), -10 * time.Minute},
		"no date": {"", 0},
	} {
		var clock role.Clock
		if _, err := clock.Watch(answering(row.date)).Do(nil); err != nil {
			t.Fatal(err)
		}
		if off := time.Until(clock.Now()) - row.ahead; off.Abs() > time.Minute {
			t.Errorf("%s: the clock is off by %s", name, off)
		}
	}
}
