package notify

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// verdict is what an answer of the API server means for a request.
type verdict string

const (
	accepted   verdict = "it was accepted"
	unanswered verdict = "trying again"
	forbidden  verdict = "it is not tried again for an hour"
	rejected   verdict = "it is left out"
	// lost: what the request is about no longer exists.
	lost verdict = "it is of no use"
)

// judge tells what an error of a request means. What is no answer of the API server, or says that it is busy or not
// well, is worth another try.
func judge(err error) verdict {
	var status apierrors.APIStatus
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return accepted
	case !errors.As(err, &status):
		return unanswered
	case apierrors.IsForbidden(err):
		return forbidden
	case apierrors.IsNotFound(err), apierrors.IsGone(err):
		return lost
	case apierrors.IsTooManyRequests(err), apierrors.IsTimeout(err), apierrors.IsUnauthorized(err), apierrors.IsConflict(err):
		return unanswered
	case status.Status().Code >= 500:
		return unanswered
	}
	return rejected
}
