package imds

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"
)

// Checkup is the result of Source.Check.
type Checkup struct {
	// Unreachable is why not even a session token was given; nil if one was. Nothing else is requested then.
	Unreachable error
	// Endpoint is where the service has answered, such as "http://169.254.169.254"; empty if it has not.
	Endpoint string
	// Slowest is the longest that an answer took, and Slow says whether that is more than it should need.
	Slowest time.Duration
	Slow    bool
	// Build is the newest version of the metadata that the instance has, such as "2021-07-15"; empty if the service does
	// not say. Lacking are the documents that EC2 has added since, so that they are never there.
	Build   string
	Lacking []string
	// LifeCycle is the instance's; empty if the service does not say.
	LifeCycle string
	// Polls are the requests for the documents in which something is announced, one each.
	Polls []Poll
	// Ahead is how far this machine's clock is ahead of the service's, to a second; Dated says whether that is known.
	Ahead time.Duration
	Dated bool
}

// Hops reports whether the instance's hop limit seems to keep the session token from this process. With a hop limit of 1, a container can
// connect to the service, but the packets of the answer end before the container. So a time-out of the token request counts as a sign of that.
func (c Checkup) Hops() bool {
	return errors.Is(c.Unreachable, errToken) && errors.Is(c.Unreachable, context.DeadlineExceeded)
}

// Check requests a session token, the life cycle, the versions and every document that is polled, once each. "nth check" shows the result. Check
// calls no callback in Options but Observe.
func (s *Source) Check(ctx context.Context) Checkup {
	var c Checkup
	r := s.newReader()
	lifeCycle, err := read(ctx, r, lifeCyclePath, shortDocument, parseLifeCycle)
	seen := &r.seen
	c.Endpoint, c.Dated = seen.endpoint, !seen.date.IsZero()
	if c.Dated {
		c.Ahead = seen.at.Sub(seen.date).Truncate(time.Second)
	}
	if err != nil && (errors.Is(err, errToken) || !c.Dated) { // Every answer has a date: without one, none came.
		c.Unreachable = err
		return c
	}
	c.LifeCycle = lifeCycle
	if c.Build, err = read(ctx, r, versionsPath, longDocument, newestVersion); err == nil && c.Build != "" {
		for _, added := range introduced {
			if c.Build < added.version { // Versions are dates, so they compare as texts.
				c.Lacking = append(c.Lacking, added.document)
			}
		}
	}
	r.observe = func(p Poll) { c.Polls = append(c.Polls, p) }
	for _, look := range []func(context.Context, *reader) (found, error){
		lookForSpot, (&targetStates{opts: Options{BootID: s.opts.BootID}}).look, lookForRebalance, (&maintenance{}).look,
	} {
		_, _ = look(ctx, r) // Its errors are in c.Polls.
	}
	c.Slowest, c.Slow = seen.slowest, seen.slowest > fastAnswer
	return c
}

// fastAnswer is the longest that a healthy service takes to answer. It is on the same host and needs milliseconds.
const fastAnswer = 500 * time.Millisecond

// versionsPath is the list of the versions of the metadata that the instance has, one per line. The SDK cleans the path.
const versionsPath = "../.."

// introduced says with which version EC2 has added the documents, as far as an instance may have an older one. On Nitro an
// instance keeps the versions that existed when it was launched; on Xen, when it was last started.
// (AWS, "Instance metadata categories", which also has the dates.)
var introduced = []struct{ version, document string }{
	{"2018-08-17", scheduledPath},
	{"2020-10-27", rebalancePath},
	{"2021-07-15", targetStatePath},
}

// versionShape is a version as EC2 names them since the first, which is 1.0.
var versionShape = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)

// newestVersion returns the newest version in the list of versions; "" if it has none that can be read. The error is always nil, as read wants
// one.
func newestVersion(body []byte) (string, error) {
	newest := ""
	for line := range strings.Lines(string(body)) {
		if version := strings.Trim(line, "/ \r\n"); versionShape.MatchString(version) {
			newest = max(newest, version)
		}
	}
	return newest, nil
}
