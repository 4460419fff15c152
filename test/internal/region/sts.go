package region

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Tokens is STS as far as a service account's token is exchanged for a role's credentials. The zero value is ready.
type Tokens struct {
	mu     sync.Mutex
	refuse int
	given  []string
	tokens []string
}

// Throttle refuses the next requests.
func (s *Tokens) Throttle(requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = requests
}

// Given are the access keys that were given so far, and Shown the tokens that were shown for them.
func (s *Tokens) Given() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.given...)
}

// Shown are the tokens that were shown so far, refused requests included.
func (s *Tokens) Shown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.tokens...)
}

// ServeHTTP answers a request of the query protocol.
func (s *Tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens = append(s.tokens, r.PostFormValue("WebIdentityToken"))
	if s.refuse > 0 {
		s.refuse--
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>")
		return
	}
	key := fmt.Sprintf("ASIAEXAMPLE%09d", len(s.given)+1)
	s.given = append(s.given, key)
	fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>`+
		`<AccessKeyId>%s</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken><Expiration>%s</Expiration>`+
		`</Credentials><AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/nth-queue/test</Arn><AssumedRoleId>AROA:test</AssumedRoleId></AssumedRoleUser>`+
		`</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, key, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}
