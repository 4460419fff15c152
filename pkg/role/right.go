package role

import (
	"context"
	"time"
)

// Right is an action that IAM has to allow. Packages list what they need, for the commands "check".
type Right struct {
	// Name is its name in IAM policies, and Without says what follows if it is missing.
	Name, Without string
	// Try makes a request that needs the right, and changes nothing. Its error may be about the request, such as an invalid parameter.
	Try func(context.Context) error
}

// tryTimeout is how long an attempt of a right may take.
const tryTimeout = 10 * time.Second

// Allowed reports whether IAM allows the right, by trying it. The error says why that is not known.
func (r Right) Allowed(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := r.Try(ctx)
	switch Code(err) {
	case "DryRunOperation", "ValidationError", "InvalidParameterValue", "ReceiptHandleIsInvalid":
		return true, nil // A service looks at a request only after IAM has allowed it.
	}
	if Refused(err) {
		return false, nil
	}
	return err == nil, Explain(r.Name, tryTimeout, err)
}
