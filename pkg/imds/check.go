package imds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Checkup is how the service answers, asked once.
type Checkup struct {
	// Unreachable is why not even a session token was given; nil if one was. Nothing else is asked for then.
	Unreachable error
	// Endpoint is where it has answered, such as "http://169.254.169.254"; empty if it has not.
	Endpoint string
	// Slowest is the longest that it has taken for an answer, and Slow tells whether that is more than it should need.
	Slowest time.Duration
	Slow    bool
	// Build is the newest version of the metadata that the instance has, such as "2021-07-15"; empty if the service does not
	// tell. Lacking are the documents that EC2 has added since, so that they are never there.
	Build   string
	Lacking []string
	// LifeCycle is the instance's; empty if the service does not tell.
	LifeCycle string
	// Polls are the requests for the documents in which something is announced, one each.
	Polls []Poll
	// Ahead is how far this machine's clock is ahead of the service's, to a second; Dated tells whether that is known.
	Ahead time.Duration
	Dated bool
}

// Hops tells whether the token seems to be lost on its way: the service takes the connection and no answer arrives, as
// in a container on an instance whose hop limit is 1. The answer's packets end there, and those of a handshake do not.
func (c Checkup) Hops() bool {
	return errors.Is(c.Unreachable, errToken) && errors.Is(c.Unreachable, context.DeadlineExceeded)
}

// Check asks for a token, the life cycle, the versions and every document, once each.
func (s *Source) Check(ctx context.Context) Checkup {
	var c Checkup
	heard := &heard{}
	ctx = context.WithValue(ctx, heardKey{}, heard)
	asked := s.client(false)
	asked.turn, asked.limit = once, checkLimit
	lifeCycle, err := read(ctx, asked, lifeCyclePath, parseLifeCycle)
	c.Endpoint, c.Ahead, c.Dated = heard.endpoint, heard.ahead, heard.dated
	if err != nil && (errors.Is(err, errToken) || !heard.dated) {
		c.Unreachable = err
		return c
	}
	c.LifeCycle = lifeCycle
	if c.Build, err = read(ctx, asked, versionsPath, newestVersion); err == nil && c.Build != "" {
		c.Lacking = lacking(c.Build)
	}
	asked.observe = func(p Poll) { c.Polls = append(c.Polls, p) }
	for _, look := range []look{
		spot(asked), targetState(asked, newTransitions(Options{BootID: s.opts.BootID})), rebalanceRecommendation(asked), scheduledMaintenance(asked),
	} {
		_, _ = look(ctx) // What it finds is no matter here, and its errors are in the polls.
	}
	c.Slowest, c.Slow = heard.slowest, heard.slowest > brisk
	return c
}

// versionsPath is the list of the versions of the metadata that the instance has, one a line, as a path that the SDK cleans.
const versionsPath = "../.."

// introduced says with which version EC2 has added the documents, as far as an instance may have an older one. On Nitro an
// instance has the versions that there were when it was launched, for as long as it lives; on Xen, when it was last started.
// (AWS, "Instance metadata categories"; for the dates, the same table.)
var introduced = []struct{ version, document string }{
	{"2018-08-17", scheduledPath},
	{"2020-10-27", rebalancePath},
	{"2021-07-15", targetStatePath},
}

// versionShape is a version as EC2 names them since the first, which is 1.0.
var versionShape = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)

// newestVersion reads the newest version from the list of them; "" if there is none that can be read.
func newestVersion(body []byte) (string, error) {
	newest := ""
	for line := range strings.Lines(string(body)) {
		if version := strings.Trim(line, "/ \r\n"); versionShape.MatchString(version) {
			newest = max(newest, version)
		}
	}
	return newest, nil
}

// lacking lists the documents that are newer than the version.
func lacking(newest string) []string {
	var documents []string
	for _, added := range introduced {
		if newest < added.version {
			documents = append(documents, added.document)
		}
	}
	return documents
}

// Scope is what is polled on instances of a life cycle, as the options say.
func (s *Source) Scope(lifeCycle string) Scope { return s.scope(lifeCycle) }

// errToken is the step in which a session token is asked for.
var errToken = errors.New("asking for a session token")

// heard is what the answers to a check say beside what was asked.
type heard struct {
	endpoint string
	slowest  time.Duration
	dated    bool
	ahead    time.Duration // by the Date in the header
}

type heardKey struct{}

// noteAnswer notes what an answer says, if the request's context wants that.
func noteAnswer(ctx context.Context, answer *http.Response, took time.Duration) {
	h, wanted := ctx.Value(heardKey{}).(*heard)
	if !wanted {
		return
	}
	h.slowest = max(h.slowest, took)
	if answer.Request != nil {
		h.endpoint = answer.Request.URL.Scheme + "://" + answer.Request.URL.Host
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		h.dated, h.ahead = true, time.Since(date).Truncate(time.Second)
	}
}

// String is a poll in a few words.
func (p Poll) String() string {
	switch p.Result {
	case Failed:
		return p.Err.Error()
	case Absent:
		return fmt.Sprintf("%s: nothing is announced", p.Document)
	default:
		return fmt.Sprintf("%s: read", p.Document)
	}
}
