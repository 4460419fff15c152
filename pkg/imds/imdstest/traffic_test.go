package imdstest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func TestRequestsAreCounted(t *testing.T) {
	srv := start(t)
	get(t, srv, spot)
	get(t, srv, instanceID)
	do(t, "GET", srv.URL+instanceID)
	do(t, "PUT", srv.URL+"/latest/api/token")

	counts := srv.Requests()
	if counts.Total != 6 || counts.Tokens != 3 {
		t.Errorf("%d requests, %d for tokens; want 6 and 3", counts.Total, counts.Tokens)
	}
	if counts.ByPath[spot] != 1 || counts.ByPath[instanceID] != 2 || counts.ByPath["/latest/api/token"] != 3 {
		t.Errorf("by path: %v", counts.ByPath)
	}
	if counts.ByStatus[200] != 3 || counts.ByStatus[404] != 1 || counts.ByStatus[401] != 1 || counts.ByStatus[400] != 1 {
		t.Errorf("by status: %v", counts.ByStatus)
	}
	if counts.MostInFlight < 1 {
		t.Errorf("most at once: %d", counts.MostInFlight)
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	srv := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := srv.Await(ctx, func(imdstest.Counts) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestChangesAndRequestsAreTold(t *testing.T) {
	srv := start(t)
	var mu sync.Mutex
	var changes []string
	told := make(chan imdstest.Exchange, 10)
	srv.OnChange(func(change string) {
		mu.Lock()
		defer mu.Unlock()
		changes = append(changes, change)
	})
	srv.OnRequest(func(e imdstest.Exchange) { told <- e })

	srv.SetSpot("stop", noon)
	srv.Fault(imdstest.Fault{Kind: imdstest.Status, Status: 503, Path: "meta-data/spot"})
	do(t, "GET", srv.URL+spot)
	want := imdstest.Exchange{Method: "GET", Path: spot, Status: 503, Fault: "status 503 on meta-data/spot"}
	if got := <-told; got != want {
		t.Errorf("told of request %+v, want %+v", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"spot interruption: stop at 2019-01-21T10:00:43Z", "fault: status 503 on meta-data/spot"}; !slices.Equal(changes, want) {
		t.Errorf("told of changes %q, want %q", changes, want)
	}
}
