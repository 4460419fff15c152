package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer is the API server's answer; empty if there was none, so that the request may have been carried out.
func Answer(err error) meta.Status {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status()
	}
	return meta.Status{}
}

// Passing reports whether a failure may pass by itself. A 4xx of the API server stands, except for authentication (a
// credential may be renewed), conflicts, timeouts and throttling. A proxy says 404 while the API server behind it moves.
func Passing(err error) bool {
	switch code := Answer(err).Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	case http.StatusNotFound:
		return !NotFound(err)
	default:
		return code < 400 || code >= 500
	}
}

// NotFound reports whether the API server has answered that there is no such object. The page of a proxy or a load balancer with that code, which
// client-go marks as unexpected, is not the API server's answer.
func NotFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// NotYet is a failure after which Retry pauses for a set time.
type NotYet struct {
	Text  string
	Pause time.Duration
}

func (e NotYet) Error() string { return e.Text }

// RetryAfter is the pause that a throttling API server asks for, but a few seconds at most: a drain that has two minutes cannot spend
// one of them waiting.
func RetryAfter(err error) time.Duration {
	const longest = 5 * time.Second
	if later, ok := errors.AsType[NotYet](err); ok {
		return later.Pause
	}
	if delay, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(min(max(delay, 0), int(longest/time.Second))) * time.Second
	}
	return 0
}

// Plain describes an error in words that stay the same from one attempt to the next, so that it is reported once.
func Plain(err error) string {
	switch s := Answer(err); {
	case s.Code != 0:
		return fmt.Sprintf("%d %s: %s", s.Code, http.StatusText(int(s.Code)), s.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer from the API server"
	case strings.Contains(err.Error(), "getting credentials"): // as pkg/identity says when an exec plugin fails
		return "the credential plugin fails"
	}
	return "the API server cannot be reached"
}

// EqualIgnoringDigits reports whether two errors differ in nothing but digits: ports and times change with every attempt.
func EqualIgnoringDigits(a, b string) bool {
	digits := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}
	return strings.Map(digits, a) == strings.Map(digits, b)
}

// Reasons are the reported reasons of a failure, each once and 16 at most: a server may give another one each time.
type Reasons []string

// Add adds a reason, and returns true if it is to be reported: no earlier one is the same, and there are not too many.
func (r *Reasons) Add(text string, same func(a, b string) bool) bool {
	const most = 16
	if len(*r) == most || slices.ContainsFunc(*r, func(before string) bool { return same(before, text) }) {
		return false
	}
	*r = append(*r, text)
	return true
}

// Trouble is why something keeps failing. The zero value is no trouble.
type Trouble struct {
	since    time.Time
	reported Reasons
}

// Note records a failure, and returns the reason to report now. It is empty if that reason was reported before, or if the failure may pass and has
// not lasted for ten seconds.
func (t *Trouble) Note(err error) (why string) {
	const patience = 10 * time.Second
	now := time.Now()
	if t.since.IsZero() {
		t.since = now
	}
	why = err.Error()
	if Passing(err) {
		why = Plain(err)
		if now.Sub(t.since) < patience {
			return ""
		}
	}
	if !t.reported.Add(why, EqualIgnoringDigits) {
		return ""
	}
	return why
}

// Last is the reason that was reported last; empty if there is none.
func (t *Trouble) Last() string {
	if len(t.reported) == 0 {
		return ""
	}
	return t.reported[len(t.reported)-1]
}
