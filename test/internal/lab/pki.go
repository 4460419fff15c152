package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Certificates begin a little in the past, like a real authority's, and
// outlive any test.
const (
	certificateSkew = time.Minute
	certificateLife = 24 * time.Hour
)

// An authority signs the certificates of one control plane.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "nth lab"}, key)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	text, err := cert.EncodeCertificates(certificate)
	return &authority{certificate: certificate, key: key, pem: text}, err
}

// client returns a certificate, good for so long. The API server takes the
// common name for the user's name and the organizations for the groups.
func (a *authority) client(life time.Duration, user string, groups ...string) ([]byte, error) {
	return a.issue(life, x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// server returns a certificate for a server on 127.0.0.1.
func (a *authority) server() ([]byte, error) {
	return a.issue(certificateLife, x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

// issue returns a certificate and its key in one PEM text, the way the kubelet
// keeps its own.
func (a *authority) issue(life time.Duration, template x509.Certificate) ([]byte, error) {
	name, now := template.Subject.CommonName, time.Now()
	template.SerialNumber, template.KeyUsage = big.NewInt(now.UnixNano()), x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = now.Add(-certificateSkew), now.Add(life)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key for %q: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %q: %w", name, err)
	}
	text, err := cert.EncodeCertificates(&x509.Certificate{Raw: der})
	if err != nil {
		return nil, err
	}
	keyText, err := keyutil.MarshalPrivateKeyToPEM(key)
	return append(text, keyText...), err
}

// writeFile puts data at path in one step, so that a reader, such as a client
// that looks for a renewed certificate, never sees half of it.
func writeFile(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
