package role_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/role"
)

// answering is an HTTP client whose answers have those Dates, each by how much it is ahead of the machine's clock.
type answering struct{ ahead []time.Duration }

// Do implements aws.HTTPClient.
func (a *answering) Do(*http.Request) (*http.Response, error) {
	date := time.Now().Add(a.ahead[0]).UTC().Format(http.TimeFormat)
	a.ahead = a.ahead[1:]
	return &http.Response{Header: http.Header{"Date": {date}}}, nil
}

func TestClock_BelievesTwoAnswersOfAWSThatAgree(t *testing.T) {
	t.Parallel()
	const wrong, right, later = -10 * time.Minute, 10 * time.Minute, 20 * time.Minute
	for name, row := range map[string]struct {
		answers []time.Duration
		want    time.Duration
	}{
		"none":                     {nil, 0},
		"ahead":                    {[]time.Duration{right, right}, right},
		"behind":                   {[]time.Duration{wrong, wrong}, wrong},
		"one alone":                {[]time.Duration{right}, 0},
		"one wrong among right":    {[]time.Duration{right, right, wrong}, right},
		"every other one is wrong": {[]time.Duration{right, right, wrong, right, wrong}, right},
		"the clock was set":        {[]time.Duration{right, right, later, later}, later},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clock role.Clock
			client := clock.Watch(&answering{row.answers})
			for range row.answers {
				if _, err := client.Do(nil); err != nil {
					t.Fatal(err)
				}
			}
			if off := time.Until(clock.Now()) - row.want; off.Abs() > time.Minute {
				t.Errorf("the clock is off by %s", off)
			}
		})
	}
}
