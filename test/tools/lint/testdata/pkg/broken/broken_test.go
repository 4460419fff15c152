package broken

import (
	"context"
	"os"
	"testing"
)

// A test may end, print and begin contexts.
func TestAll(t *testing.T) {
	os.Stdout.Name()
	_ = context.Background()
	_, _ = os.MkdirTemp("", "") // want usetesting
	_ = context.TODO()          // want forbidigo
}
