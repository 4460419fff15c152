package drain_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
)

// For the race detector: looks that succeed and looks that are refused follow one another at once.
func TestLooksThatAreRefusedShareNothingUnlocked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := apitest.New(t)
		n := 0
		s.Always("get", func(w http.ResponseWriter, r *http.Request) bool {
			time.Sleep(100 * time.Millisecond)
			if n++; n%2 == 0 {
				return apitest.Forbidden("not now")(w, r)
			}
			return false
		})
		begin(t, s, drain.Options{})
		for i := range 400 {
			s.AddPod(pod(fmt.Sprintf("web-%d", i)), 0)
			time.Sleep(50 * time.Millisecond)
		}
	})
}
