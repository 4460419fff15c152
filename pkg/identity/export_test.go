package identity

import (
	"context"
	"net/http"
	"time"

	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/text"
)

// Authenticated shows next a token that create makes, as a client does.
func Authenticated(next http.RoundTripper, create func() (token string, expires time.Time, err error)) http.RoundTripper {
	return authenticated{next, &keeper{create: func(context.Context) (credential, error) {
		token, expires, err := create()
		return credential{token: token, expires: expires}, err
	}}}
}

// RunPlugin runs an exec plugin for a token.
func RunPlugin(ctx context.Context, spec *api.ExecConfig) (token string, expires time.Time, err error) {
	p, err := newPlugin(spec, "")
	if err != nil {
		return "", time.Time{}, err
	}
	c, err := p.create(ctx)
	return c.token, c.expires, err
}

// Describe returns what is said of a kubeconfig: the error, or how the client that was made from it is described.
func Describe(ctx context.Context, k *Kubelet) []string {
	said := []string{"", "", ""}
	if err := text.Redacted(k.refresh(ctx)); err != nil {
		said[0] = err.Error()
	}
	if k.newest != nil {
		said[1], said[2] = k.newest.Server, k.newest.Credential
	}
	return said
}
