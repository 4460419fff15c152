package imds

import (
	"context"
	"errors"
	"net/http"
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

// Hops reports whether the token seems to be lost on its way: the service takes the connection and no answer arrives, as
// in a container on an instance whose hop limit is 1. The answer's packets end there, and those of a handshake do not.
func (c Checkup) Hops() bool {
	return errors.Is(c.Unreachable, errToken) && errors.Is(c.Unreachable, context.DeadlineExceeded)
}

// Check requests a token, the life cycle, the versions and every document, once each.
func (s *Source) Check(ctx context.Context) Checkup {
	var c Checkup
	seen := &answersSeen{}
	ctx = context.WithValue(ctx, answersSeenKey{}, seen)
	client := s.newClient(oneOffPriority)
	client.timeout = checkTimeout
	lifeCycle, err := read(ctx, client, lifeCyclePath, parseLifeCycle)
	c.Endpoint, c.Ahead, c.Dated = seen.endpoint, seen.ahead, seen.dated
	if err != nil && (errors.Is(err, errToken) || !seen.dated) {
		c.Unreachable = err
		return c
	}
	c.LifeCycle = lifeCycle
	if c.Build, err = read(ctx, client, versionsPath, newestVersion); err == nil && c.Build != "" {
		for _, added := range introduced {
			if c.Build < added.version {
				c.Lacking = append(c.Lacking, added.document)
			}
		}
	}
	client.observe = func(p Poll) { c.Polls = append(c.Polls, p) }
	for _, poll := range []pollFunc{
		pollSpot(client), pollTargetState(client, newTargetStates(Options{BootID: s.opts.BootID})), pollRebalance(client), pollMaintenance(client),
	} {
		_, _ = poll(ctx) // Its errors are in c.Polls.
	}
	c.Slowest, c.Slow = seen.slowest, seen.slowest > fastAnswer
	return c
}

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

// newestVersion parses the list of versions; "" if it has none that can be read.
func newestVersion(body []byte) (string, error) {
	newest := ""
	for line := range strings.Lines(string(body)) {
		if version := strings.Trim(line, "/ \r\n"); versionShape.MatchString(version) {
			newest = max(newest, version)
		}
	}
	return newest, nil
}

// answersSeen is what the answers to a check say beside what was requested.
type answersSeen struct {
	endpoint string
	slowest  time.Duration
	dated    bool
	ahead    time.Duration // by the Date in the header
}

type answersSeenKey struct{}

// noteForCheck notes what an answer says, if the request is part of a check.
func noteForCheck(ctx context.Context, answer *http.Response, latency time.Duration) {
	seen, ok := ctx.Value(answersSeenKey{}).(*answersSeen)
	if !ok {
		return
	}
	seen.slowest = max(seen.slowest, latency)
	if answer.Request != nil {
		seen.endpoint = answer.Request.URL.Scheme + "://" + answer.Request.URL.Host
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		seen.dated, seen.ahead = true, time.Since(date).Truncate(time.Second)
	}
}
