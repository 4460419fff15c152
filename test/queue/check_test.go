package queue_test

import (
	"testing"

	"github.com/nth-project/nth/test/internal/daemon"
)

// check runs "nth-queue check", which must not fail, and returns what it says.
func check(t *testing.T, consumer *daemon.Daemon) string {
	t.Helper()
	said, err := consumer.Ask("check")
	if err != nil {
		t.Errorf("nth-queue check: %v\n%s", err, said)
	}
	return said
}
