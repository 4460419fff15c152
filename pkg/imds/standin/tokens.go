package standin

import (
	"crypto/rand"
	"encoding/base64"
	"sync"
	"time"
)

// tokens are the session tokens that were handed out and have not expired.
type tokens struct {
	mu      sync.Mutex
	expires map[string]time.Time
}

// issue makes a token that lives for ttl seconds. It looks like one of EC2's: 56 characters of base64.
func (t *tokens) issue(ttl int) string {
	random := make([]byte, 40)
	_, _ = rand.Read(random) // never fails, by its documentation
	token := base64.URLEncoding.EncodeToString(random)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetExpired()
	if t.expires == nil {
		t.expires = map[string]time.Time{}
	}
	t.expires[token] = time.Now().Add(time.Duration(ttl) * time.Second)
	return token
}

// check returns how many seconds a token still has, rounded up, and whether it is valid at all.
func (t *tokens) check(token string) (ttl int, valid bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := time.Until(t.expires[token])
	if left <= 0 {
		return 0, false
	}
	return int((left + time.Second - 1) / time.Second), true
}

func (t *tokens) expireAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.expires)
}

func (t *tokens) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetExpired()
	return len(t.expires)
}

func (t *tokens) forgetExpired() {
	for token, at := range t.expires {
		if time.Until(at) <= 0 {
			delete(t.expires, token)
		}
	}
}

// ExpireTokens makes every token that was handed out invalid: requests with it get 401 until they bring a new one.
func (s *Service) ExpireTokens() { s.tokens.expireAll() }

// ValidTokens counts the tokens that were handed out and are valid still.
func (s *Service) ValidTokens() int { return s.tokens.count() }
