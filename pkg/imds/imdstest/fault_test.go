package imdstest_test

import (
	"errors"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func TestFault_IsMetUntilItIsOver(t *testing.T) {
	for kind, broken := range map[imdstest.Kind]func(status int, body string, err error) bool{
		imdstest.Unavailable: func(status int, _ string, _ error) bool { return status == http.StatusServiceUnavailable },
		imdstest.Garbage:     func(_ int, body string, _ error) bool { return body == "\x80no document" },
		imdstest.Reset:       func(_ int, _ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) },
		imdstest.Hang:        func(_ int, body string, _ error) bool { return body == imdstest.InstanceID }, // once it is over
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			srv := start(t)
			valid := token(t, srv)
			ask := func() (status int, body string, err error) {
				response, err := try(bounded(t), "GET", srv.URL+instanceID, tokenHeader, valid)
				if err != nil {
					return 0, "", err
				}
				defer response.Body.Close()
				text, err := io.ReadAll(response.Body)
				return response.StatusCode, string(text), err
			}
			last := time.Second
			if kind == imdstest.Hang {
				last = 50 * time.Millisecond
			}
			srv.Fault(imdstest.Fault{Kind: kind, For: last})
			if status, body, err := ask(); !broken(status, body, err) {
				t.Errorf("status %d, body %q, %v", status, body, err)
			}
			for limit := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if _, body, _ := ask(); body == imdstest.InstanceID {
					return
				}
				if time.Now().After(limit) {
					t.Fatal("the fault is not over")
				}
			}
		})
	}
}
