package imdstest_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

const (
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
)

// patience bounds every wait for something that must happen. No test waits that long unless it fails.
const patience = 30 * time.Second

func start(t *testing.T) *imdstest.Server {
	t.Helper()
	srv := imdstest.NewServer()
	t.Cleanup(srv.Close)
	return srv
}

// bounded is a context for requests that must come to an end.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// try sends a request on a connection of its own, headers given in pairs, and returns the answer without its body.
func try(ctx context.Context, method, url string, headers ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
}

// do sends a request that must be answered, and returns the answer with its body read.
func do(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	response, err := try(bounded(t), method, url, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("reading the answer to %s %s: %v", method, url, err)
	}
	return response, string(body)
}

func token(t *testing.T, srv *imdstest.Server) string {
	t.Helper()
	response, body := do(t, "PUT", srv.URL+"/latest/api/token", ttlHeader, "21600")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("asking for a token: status %d", response.StatusCode)
	}
	return body
}

// get reads a document with a token of its own.
func get(t *testing.T, srv *imdstest.Server, path string) (status int, body string) {
	t.Helper()
	response, body := do(t, "GET", srv.URL+path, tokenHeader, token(t, srv))
	return response.StatusCode, body
}
