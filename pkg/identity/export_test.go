package identity

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nth-project/nth/pkg/text"
)

// Authenticated shows next a token that fetch makes, as a client does.
func Authenticated(next http.RoundTripper, fetch func(ctx context.Context, refused bool) (token string, expires time.Time, err error)) http.RoundTripper {
	return authenticated{&keeper{plain: next, fetch: func(ctx context.Context, refused bool) (credential, error) {
		token, expires, err := fetch(ctx, refused)
		return credential{secret: secret{token: token, expires: expires}}, err
	}}}
}

// Credential is what an exec plugin prints.
type Credential struct {
	Token       string
	Certificate *tls.Certificate
	Expires     time.Time
}

// RunPlugin runs the exec plugin of a configuration, below a root directory unless that is "".
func RunPlugin(ctx context.Context, config *rest.Config, root string) (Credential, error) {
	p, err := newPlugin(config, root, nil)
	if err != nil {
		return Credential{}, err
	}
	s, err := p.run(ctx)
	return Credential{s.token, s.certificate, s.expires}, err
}

// ReadPlugin reads what the exec plugin of a configuration has printed, without running it.
func ReadPlugin(config *rest.Config, stdout, stderr []byte) (Credential, error) {
	p, err := newPlugin(config, "", nil)
	if err != nil {
		return Credential{}, err
	}
	complaint := &tail{}
	_, _ = complaint.Write(stderr) // It keeps the end, and never fails.
	s, err := p.decode(stdout, complaint)
	return Credential{s.token, s.certificate, s.expires}, err
}

// Describe returns what is said of a kubeconfig: the error, or how the client that was made from it is described.
func Describe(ctx context.Context, k *Kubelet) []string {
	said := []string{"", "", ""}
	if err := text.Redacted(k.refresh(ctx)); err != nil {
		said[0] = err.Error()
	}
	if k.next != nil {
		said[1], said[2] = k.next.Server, k.next.Credential()
	}
	return said
}
