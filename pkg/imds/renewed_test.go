package imds_test

import (
	"strings"
	"sync"
	"testing"
	"time"
)

func TestEachRequestForATokenIsToldWithItsEnd(t *testing.T) {
	for name, test := range map[string]struct {
		says answer
		want string // "" is a token
	}{
		"given":   {answer{}, ""},
		"refused": {answer{status: 403}, "403 Forbidden"},
		"garbage": {answer{body: "<html>\n"}, "no token"},
		"hangs":   {answer{hang: true}, "context "},
	} {
		t.Run(name, func(t *testing.T) {
			ec2 := serve(announced)
			ec2.say("token", test.says)
			var mu sync.Mutex
			var told []error
			opts := spotOnly
			opts.Renewed = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, err)
			}
			bubble(t, opts, ec2, func(t *testing.T, _ *sink) { time.Sleep(3 * time.Second) })
			if asked := len(ec2.times("token")); len(told) == 0 || len(told) != asked {
				t.Errorf("told %d times, asked %d times", len(told), asked)
			}
			for _, err := range told {
				switch {
				case test.want == "" && err != nil:
					t.Errorf("told of the trouble %v, want none", err)
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("told %v, want trouble that says %q", err, test.want)
				}
			}
		})
	}
}
