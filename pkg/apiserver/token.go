package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// renewBefore is how long before its end a token is replaced. It is longer than the pauses of KeepWarm, so that no drain
// begins with a token that the API server has not seen yet: looking into a new one takes it some time.
const renewBefore = 6 * time.Minute

// tokens keeps a token and makes another in time.
type tokens struct {
	make func(ctx context.Context) (token string, expires time.Time, err error)

	mu      sync.Mutex
	token   string
	expires time.Time
}

// get returns a token that is good for a while. Where no other can be made, one that is about to expire will do.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if left := time.Until(t.expires); left >= renewBefore {
		return t.token, nil
	} else if token, expires, err := t.make(ctx); err == nil {
		t.token, t.expires = token, expires
	} else if left <= 0 {
		return "", fmt.Errorf("getting credentials: %w", err)
	}
	return t.token, nil
}

// drop forgets a token that was refused.
func (t *tokens) drop(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token == token {
		t.token, t.expires = "", time.Time{}
	}
}

// bearer shows the API server a token with each request.
type bearer struct {
	next   http.RoundTripper
	tokens *tokens
}

var _ utilnet.RoundTripperWrapper = bearer{}

// WrappedRoundTripper lets client-go find the connections behind.
func (b bearer) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip is next's.
func (b bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	token, err := b.tokens.get(request.Context())
	if err != nil {
		return nil, err
	}
	request = utilnet.CloneRequest(request)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := b.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusUnauthorized {
		b.tokens.drop(token)
	}
	return response, err
}
