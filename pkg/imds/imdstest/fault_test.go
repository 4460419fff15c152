package imdstest_test

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func TestFault_AnswersWithAStatus(t *testing.T) {
	tests := map[string]struct {
		fault                imdstest.Fault
		token, spot, another int
	}{
		"503 everywhere":               {imdstest.Fault{Kind: imdstest.Status, Status: 503}, 503, 503, 503},
		"500 unless said otherwise":    {imdstest.Fault{Kind: imdstest.Status}, 500, 500, 500},
		"below a folder":               {imdstest.Fault{Kind: imdstest.Status, Path: "/latest/meta-data/spot"}, 200, 500, 200},
		"a folder without its version": {imdstest.Fault{Kind: imdstest.Status, Path: "meta-data/spot/"}, 200, 500, 200},
		"half a name is no folder":     {imdstest.Fault{Kind: imdstest.Status, Path: "meta-data/sp"}, 200, 200, 200},
		"no token is good enough":      {imdstest.Fault{Kind: imdstest.Status, Status: 401, Path: "meta-data"}, 200, 401, 401},
		"tokens only":                  {imdstest.Fault{Kind: imdstest.Status, Status: 403, Path: "/latest/api/token"}, 403, 200, 200},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			srv := start(t)
			srv.SetSpot("terminate", noon)
			valid := token(t, srv)
			check := func(when string, token, first, second int) {
				t.Helper()
				a, _ := do(t, "PUT", srv.URL+"/latest/api/token", ttlHeader, "60")
				b, _ := do(t, "GET", srv.URL+spot, tokenHeader, valid)
				c, _ := do(t, "GET", srv.URL+instanceID, tokenHeader, valid)
				if a.StatusCode != token || b.StatusCode != first || c.StatusCode != second {
					t.Errorf("%s: token %d, spot %d, instance-id %d; want %d, %d, %d",
						when, a.StatusCode, b.StatusCode, c.StatusCode, token, first, second)
				}
			}
			srv.Fault(test.fault)
			check("broken", test.token, test.spot, test.another)
			srv.Lift()
			check("lifted", 200, 200, 200)
		})
	}
}

func TestFault_TheLastOneWins(t *testing.T) {
	srv := start(t)
	srv.Fault(imdstest.Fault{Kind: imdstest.Status, Status: 503})
	srv.Fault(imdstest.Fault{Kind: imdstest.Status, Status: 500, Path: "meta-data/spot"})
	first, _ := do(t, "GET", srv.URL+spot)
	second, _ := do(t, "GET", srv.URL+instanceID)
	if first.StatusCode != 500 || second.StatusCode != 503 {
		t.Errorf("statuses %d and %d, want 500 and 503", first.StatusCode, second.StatusCode)
	}
}

func TestFault_LiftsItselfInTime(t *testing.T) {
	srv := start(t)
	valid := token(t, srv)
	// The request hangs until the fault is lifted: it is answered only if that happens by itself.
	srv.Fault(imdstest.Fault{Kind: imdstest.Hang, For: 50 * time.Millisecond})
	if response, _ := do(t, "GET", srv.URL+instanceID, tokenHeader, valid); response.StatusCode != 200 {
		t.Errorf("status %d, want 200", response.StatusCode)
	}
	if left := srv.Faults(); len(left) != 0 {
		t.Errorf("faults left: %v", left)
	}
}

func TestFault_ResetBreaksTheAnswer(t *testing.T) {
	srv := start(t)
	valid := token(t, srv)
	srv.Fault(imdstest.Fault{Kind: imdstest.Reset})
	response, err := try(bounded(t), "GET", srv.URL+instanceID, tokenHeader, valid)
	if err == nil {
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a connection reset by its peer", err)
	}
	srv.Lift()
	if status, _ := get(t, srv, instanceID); status != 200 {
		t.Errorf("lifted: status %d, want 200", status)
	}
}

func TestFault_HangAnswersOnceLifted(t *testing.T) {
	srv := start(t)
	valid := token(t, srv)
	srv.Fault(imdstest.Fault{Kind: imdstest.Hang})
	answered := make(chan int, 1)
	ctx := bounded(t)
	go func() {
		response, err := try(ctx, "GET", srv.URL+spot, tokenHeader, valid)
		if err != nil {
			answered <- 0
			return
		}
		answered <- response.StatusCode
		response.Body.Close()
	}()
	await(t, srv, "a request that hangs", func(c imdstest.Counts) bool { return c.InFlight == 1 })
	srv.SetSpot("terminate", noon)
	srv.Lift()
	if status := <-answered; status != 200 {
		t.Errorf("status %d, want 200 with the document that is there now", status)
	}
}

func TestClose_EndsHangingAndSlowRequests(t *testing.T) {
	for _, kind := range []imdstest.Kind{imdstest.Hang, imdstest.Slow} {
		t.Run(string(kind), func(t *testing.T) {
			srv := imdstest.NewServer()
			valid := token(t, srv)
			srv.Fault(imdstest.Fault{Kind: kind, Over: time.Hour})
			failed := make(chan error, 1)
			ctx := bounded(t)
			go func() {
				response, err := try(ctx, "GET", srv.URL+instanceID, tokenHeader, valid)
				if err == nil {
					_, err = io.ReadAll(response.Body)
					response.Body.Close()
				}
				failed <- err
			}()
			await(t, srv, "a request", func(c imdstest.Counts) bool { return c.InFlight == 1 })
			srv.Close()
			if left := srv.Requests().InFlight; left != 0 {
				t.Errorf("%d requests are still being handled after Close", left)
			}
			if err := <-failed; err == nil || ctx.Err() != nil {
				t.Errorf("the request ended with %v, want a cut connection", err)
			}
		})
	}
}

func TestFault_SlowIsRightAndComesInParts(t *testing.T) {
	srv := start(t)
	valid := token(t, srv)
	srv.Fault(imdstest.Fault{Kind: imdstest.Slow, Over: time.Hour})
	response, err := try(bounded(t), "GET", srv.URL+instanceID, tokenHeader, valid)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	// The headers are there an hour before the body. Lifting the fault brings the rest.
	srv.Lift()
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != imdstest.InstanceID {
		t.Errorf("body %q and %v, want %q", body, err, imdstest.InstanceID)
	}

	srv.Fault(imdstest.Fault{Kind: imdstest.Slow, Over: 50 * time.Millisecond})
	if response, body := do(t, "GET", srv.URL+instanceID, tokenHeader, valid); response.StatusCode != 200 || body != imdstest.InstanceID {
		t.Errorf("in drips to its end: status %d and body %q", response.StatusCode, body)
	}
}

func await(t *testing.T, srv *imdstest.Server, what string, reached func(imdstest.Counts) bool) {
	t.Helper()
	if err := srv.Await(bounded(t), reached); err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}
