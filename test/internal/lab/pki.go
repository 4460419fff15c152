package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

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
	template, err := newTemplate(pkix.Name{CommonName: "nth lab"})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	return &authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}, nil
}

// client returns a certificate, good for so long, and its key in one PEM text, the
// way the kubelet keeps its own. The API server takes the common name for the user's name and
// the organizations for the groups.
func (a *authority) client(life time.Duration, user string, groups ...string) ([]byte, error) {
	template, err := newTemplate(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return nil, err
	}
	template.NotAfter = time.Now().Add(life)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// server returns a certificate and its key for a server on 127.0.0.1.
func (a *authority) server() ([]byte, error) {
	template, err := newTemplate(pkix.Name{CommonName: "kube-apiserver"})
	if err != nil {
		return nil, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes.default.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) ([]byte, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key for %q: %w", name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %q: %w", name, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	return append(encode("CERTIFICATE", der), keyPEM...), nil
}

// newServiceAccountKey returns the key that signs service-account tokens.
func newServiceAccountKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the service-account key: %w", err)
	}
	return keyutil.MarshalPrivateKeyToPEM(key)
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-certificateSkew),
		NotAfter:     now.Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeFile puts data at path in one step, so that a reader, such as a client
// that looks for a renewed certificate, never sees half of it.
func writeFile(path string, data []byte) error {
	scratch, err := os.CreateTemp(filepath.Dir(path), ".lab-*")
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	_, err = scratch.Write(data)
	if closeErr := scratch.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(scratch.Name(), path)
	}
	if err != nil {
		os.Remove(scratch.Name())
		return fmt.Errorf("writing %q: %w", path, err)
	}
	return nil
}
