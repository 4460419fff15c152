package role

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// Clock tells the time by AWS's clock, as the Date header of AWS's answers has it, so that a wrong clock of the machine neither shortens nor
// lengthens a notice. Before the first answer it tells the machine's time. The zero value is ready to use, from several goroutines.
type Clock struct{ ahead atomic.Int64 }

// Now is the time by AWS's clock, to about a second.
func (c *Clock) Now() time.Time { return time.Now().Round(0).Add(time.Duration(c.ahead.Load())) }

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
			w.clock.ahead.Store(int64(date.Add(time.Second / 2).Sub(time.Now().Round(0)))) // The header has whole seconds.
		}
	}
	return response, err
}
