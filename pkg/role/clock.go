package role

import (
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Clock tells the time by AWS's clock, as the Date header of AWS's answers has it, so that a wrong clock of the machine neither shortens nor
// lengthens a notice. A difference is believed once two answers in a row agree about it; before that it tells the machine's time. The zero
// value is ready to use, from several goroutines.
type Clock struct {
	mu    sync.Mutex
	ahead time.Duration
	last  time.Duration // by how much the last answer was ahead
}

// Now is the time by AWS's clock, to about a second.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.ahead)
}

// agreement is how much two answers may differ: the header has whole seconds, and an answer takes a while.
const agreement = 3 * time.Second

// set takes the date of an answer. The difference counts once two answers in a row agree about it.
func (c *Clock) set(date time.Time) {
	ahead := date.Add(time.Second / 2).Sub(time.Now().Round(0))
	c.mu.Lock()
	defer c.mu.Unlock()
	if (ahead - c.last).Abs() <= agreement {
		c.ahead = ahead
	}
	c.last = ahead
}

// Watch wraps an HTTP client for the SDK, whose answers set the clock.
func (c *Clock) Watch(client aws.HTTPClient) aws.HTTPClient { return watched{client, c} }

type watched struct {
	aws.HTTPClient
	clock *Clock
}

// Do implements aws.HTTPClient.
func (w watched) Do(r *http.Request) (*http.Response, error) {
	response, err := w.HTTPClient.Do(r)
	if err == nil {
		if date, wrong := http.ParseTime(response.Header.Get("Date")); wrong == nil {
			w.clock.set(date)
		}
	}
	return response, err
}
