package apiserver

import (
	"context"
	"net/http"
	"time"

	"github.com/nth-project/nth/pkg/plugin"
)

// Authenticated shows next a token that fetch makes, as a client does.
func Authenticated(next http.RoundTripper, fetch func(ctx context.Context, refused bool) (token string, expires time.Time, err error)) http.RoundTripper {
	return authenticated{&keeper{plain: next, fetch: func(ctx context.Context, refused bool) (credential, error) {
		token, expires, err := fetch(ctx, refused)
		return credential{Credential: plugin.Credential{Token: token, Expires: expires}}, err
	}}}
}
