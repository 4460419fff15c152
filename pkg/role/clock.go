package role

import (
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Clock has the time by AWS's clock, from the Date header of AWS's answers. So a wrong clock of the machine neither shortens nor lengthens a
// notice. A difference between the two clocks counts once two answers in a row agree about it. Before that, Clock has the machine's time. The
// zero value is ready to use, from several goroutines.
type Clock struct {
	mu    sync.Mutex
	ahead time.Duration // how far AWS's clock is ahead of the machine's
	last  time.Duration // how far AWS's clock was ahead by the last answer alone; 0 before the first, which thus has to agree with the machine's
}

// Now returns the time by AWS's clock, to about a second.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Round(0).Add(c.ahead) // Round drops the monotonic reading: the time is for comparison with AWS's times.
}

// agreement is how much two answers that agree may differ: the header has whole seconds, and an answer takes a while.
const agreement = 3 * time.Second

// set sets the clock by the date of an answer that has just arrived, if the last answer agrees with this one.
func (c *Clock) set(date time.Time) {
	ahead := date.Add(time.Second / 2).Sub(time.Now().Round(0)) // The date is cut to whole seconds: half a second is the mean of what is lost.
	c.mu.Lock()
	defer c.mu.Unlock()
	if (ahead - c.last).Abs() <= agreement { // One answer alone may have been delayed, and does not count.
		c.ahead = ahead
	}
	c.last = ahead
}

// Watch returns a client for the SDK that sends requests through client. The Date headers of the answers set the clock.
func (c *Clock) Watch(client aws.HTTPClient) aws.HTTPClient { return watched{client, c} }

// watched is the client that Watch returns.
type watched struct {
	aws.HTTPClient
	clock *Clock
}

// Do implements aws.HTTPClient. An answer without a readable date leaves the clock as it is.
func (w watched) Do(r *http.Request) (*http.Response, error) {
	response, err := w.HTTPClient.Do(r)
	if err == nil {
		if date, dateErr := http.ParseTime(response.Header.Get("Date")); dateErr == nil {
			w.clock.set(date)
		}
	}
	return response, err
}
