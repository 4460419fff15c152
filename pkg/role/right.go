package role

import (
	"context"
	"time"
)

// Right is an action that IAM has to allow. Packages list what they need, for the commands "check".
type Right struct {
	// Name is the action's name in IAM policies. Without says what nth cannot do if the role lacks the right.
	Name, Without string
	// Try makes a request that needs the right, and that changes nothing: most services refuse it as invalid, once IAM has allowed it.
	Try func(context.Context) error
}

// tryTimeout is how long Right.Try may take.
const tryTimeout = 10 * time.Second

// Allowed calls Try, and reports whether IAM allows the right. The error says why that is not known; nil if it is known.
func (r Right) Allowed(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := r.Try(ctx)
	switch Code(err) {
	case "DryRunOperation", "ValidationError", "InvalidParameterValue", "ReceiptHandleIsInvalid":
		return true, nil // The service has refused the request as invalid, which it checks only after IAM has allowed it.
	}
	if Refused(err) { // IAM does not allow the right.
		return false, nil
	}
	return err == nil, Explain(r.Name, tryTimeout, err)
}
