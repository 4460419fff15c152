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

// Answer returns the API server's answer in an error. It is empty if none came: then the request may have been carried out.
func Answer(err error) meta.Status {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status()
	}
	return meta.Status{}
}

// Passing reports whether a failure may pass by itself, so that the request is worth repeating. A 4xx of the API server does not pass, with
// a few exceptions: a credential may be renewed, and conflicts, time-outs and throttling end.
func Passing(err error) bool {
	switch code := Answer(err).Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	case http.StatusNotFound: // A proxy answers so while the API server behind it moves.
		return !NotFound(err)
	default:
		return code < 400 || code >= 500
	}
}

// NotFound reports whether the API server has answered that there is no such object. A proxy or a load balancer may answer 404, too. client-go
// marks its page as unexpected, and it does not count.
func NotFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// NotYet is a failure that passes after a known time. Retry pauses for it.
type NotYet struct {
	Text  string
	Pause time.Duration
}

func (e NotYet) Error() string { return e.Text }

// RetryAfter returns the pause that an error asks for: that of a NotYet, or that of a throttling API server. The latter is a few seconds at
// most, as a drain that has two minutes cannot spend one of them waiting. It is 0 if the error asks for none.
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

// Plain describes an error in words that stay the same from one attempt to the next, so that Trouble reports it once.
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

// Reasons are the reasons of a failure that were reported.
type Reasons []string

// Add adds a reason, and returns true if it is to be reported. It returns false if an earlier reason is the same, according to same, or if
// too many were reported: a server may give another reason each time.
func (r *Reasons) Add(text string, same func(a, b string) bool) bool {
	const most = 16
	if len(*r) == most || slices.ContainsFunc(*r, func(before string) bool { return same(before, text) }) {
		return false
	}
	*r = append(*r, text)
	return true
}

// Trouble follows something that keeps failing, and says when a reason is to be reported. The zero value is for something that works.
type Trouble struct {
	since    time.Time // the first failure
	reported Reasons
}

// Note records a failure, and returns the reason to report now. It returns "" if that reason was reported before. It also does if the failure
// may pass, and failures have not lasted for ten seconds yet.
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

// Last returns the reason that was reported last; "" if none was.
func (t *Trouble) Last() string {
	if len(t.reported) == 0 {
		return ""
	}
	return t.reported[len(t.reported)-1]
}
