package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/text"
)

// Answer returns the API server's answer in an error. It is empty, with code 0, if no answer came. The request may have been carried out then.
func Answer(err error) meta.Status {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return status.Status()
	}
	return meta.Status{}
}

// Passing reports whether a failure may pass by itself, so that the request is worth repeating. A 4xx of the API server does not pass, with
// a few exceptions.
func Passing(err error) bool {
	switch code := Answer(err).Code; code {
	case http.StatusUnauthorized: // The credential may be renewed.
		return true
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	case http.StatusNotFound: // A proxy also answers 404, while the API server behind it moves. That passes.
		return !NotFound(err)
	default: // No answer (0), or an error of the server.
		return code < 400 || code >= 500
	}
}

// NotFound reports whether the API server has answered that there is no such object. A 404 of a proxy or a load balancer does not count:
// client-go marks it as unexpected.
func NotFound(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

// NotYet is a failure that passes after a known time. Retry pauses for it.
type NotYet struct {
	Text  string
	Pause time.Duration
}

func (e NotYet) Error() string { return e.Text }

// RetryAfter returns the pause that an error asks for: that of a NotYet, or that of a throttling API server. It is 0 if the error asks for no
// pause. An API server gets 5 s at most, as a drain that has two minutes cannot spend one of them waiting.
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
	case s.Code == http.StatusUnauthorized:
		return "the API server refuses the credential (401 Unauthorized)"
	case s.Code != 0:
		return fmt.Sprintf("%d %s: %s", s.Code, http.StatusText(int(s.Code)), text.Visible(s.Message, text.Line))
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer from the API server"
	case strings.Contains(err.Error(), "getting a token for the API server"): // the text of pkg/identity when an exec plugin fails
		return "the exec plugin fails"
	case errors.As(err, new(*url.Error)): // The request could not be sent, or no answer came.
		return "the API server cannot be reached"
	}
	return "the API server's answer is unreadable: " + text.Visible(err.Error(), text.Line) // A proxy may have answered.
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

// Add returns true if a reason is to be reported, and adds it then. It returns false if an earlier reason is the same, which the function same
// decides. It also returns false after 16 reasons: a server may give another reason each time.
func (r *Reasons) Add(text string, same func(a, b string) bool) bool {
	const most = 16
	if len(*r) == most || slices.ContainsFunc(*r, func(before string) bool { return same(before, text) }) {
		return false
	}
	*r = append(*r, text)
	return true
}

// Trouble follows something that keeps failing, and says when a reason is to be reported. The zero value is for something that works; a caller
// sets it again after a success.
type Trouble struct {
	since    time.Time // the first failure
	reported Reasons
}

// Note records a failure, and returns the reason to report now (Plain). It returns "" if that reason was reported before. It also returns "" for
// the first ten seconds of failures if this failure may pass.
func (t *Trouble) Note(err error) (why string) {
	const patience = 10 * time.Second
	now := time.Now()
	if t.since.IsZero() {
		t.since = now
	}
	why = Plain(err)
	mayPassSoon := Passing(err) && now.Sub(t.since) < patience
	if mayPassSoon || !t.reported.Add(why, EqualIgnoringDigits) {
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
