// Package eks is the API server of the lab as EKS has it: it knows a node by a token that was made from the credentials
// of its instance's role.
package eks

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nth-project/nth/pkg/ekstoken/ekstokentest"
	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/lab"
)

// ClusterName is the name of the cluster at EKS.
const ClusterName = "production"

// A Cluster is the way to the API server for one node. What it lets in is passed on with the node's own credential, so
// that a kubelet may do there what it may do anywhere.
type Cluster struct {
	// URL is the API server's address, and Authority the certificate to trust, as PEM.
	URL       string
	Authority []byte

	accepted atomic.Int64
	refused  atomic.Pointer[error]
}

// Accepted is how many requests have had a good token, and Refused why the last one was not let in, if one was not.
func (c *Cluster) Accepted() int64 { return c.accepted.Load() }

// Refused is why the last request that was not let in was not; nil if none was.
func (c *Cluster) Refused() error {
	if err := c.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// New opens the way to the API server of the node for a client with the credentials that the metadata service gives to the
// instance's role; it makes these up.
func New(t lab.TB, node *lab.Node, imds *imdstest.Server) *Cluster {
	t.Helper()
	accessKey, secretKey := "ASIA"+strings.ToUpper(node.Namespace), "secret of "+node.Name
	credentials, err := json.Marshal(map[string]string{
		"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": accessKey, "SecretAccessKey": secretKey, "Token": "session of " + node.Name,
		"LastUpdated": time.Now().UTC().Format(time.RFC3339), "Expiration": time.Now().Add(6 * time.Hour).UTC().Format(time.RFC3339),
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	imds.Set("meta-data/iam/security-credentials/"+imdstest.Role, string(credentials))
	forward, err := node.Forwarder()
	if err != nil {
		t.Fatalf("opening a way to the API server: %v", err)
	}
	c := &Cluster{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		_, err := ekstokentest.Verify(token, ClusterName, time.Now(), func(key string) (string, bool) { return secretKey, key == accessKey })
		if err != nil {
			c.refused.Store(&err)
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		c.accepted.Add(1)
		r.Header.Del("Authorization")
		forward.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // A client that is killed says no goodbye.
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	c.URL = server.URL
	c.Authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return c
}

// Settings are those of Bottlerocket for a node of the cluster.
func (c *Cluster) Settings() map[string]string {
	return map[string]string{
		"settings.kubernetes.api-server":          c.URL,
		"settings.kubernetes.cluster-certificate": base64.StdEncoding.EncodeToString(c.Authority),
		"settings.kubernetes.cluster-name":        ClusterName,
		"settings.kubernetes.authentication-mode": "aws",
		"settings.aws.region":                     imdstest.Region,
	}
}
