package daemon_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/cmd/internal/daemon"
)

func TestRunWith_LeavesBehindOnlyWorkThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, run := make(chan struct{}), func(context.Context) {}
		for limit, work := range map[time.Duration]func(context.Context){
			time.Second:     func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second) },
			5 * time.Second: func(context.Context) { <-hangs },
		} {
			began := time.Now()
			if daemon.RunWith(t.Context(), run, work); time.Since(began) != limit {
				t.Errorf("it ended after %s, want %s", time.Since(began), limit)
			}
		}
		close(hangs)
	})
}
