package querytest

import (
	"context"
	"io/fs"
	"net/http"
	"net/http/httptest"
)

// Client asks a stand-in without a network. It implements aws.HTTPClient.
type Client struct{ http.Handler }

// Do has the stand-in answer a request.
func (c Client) Do(q *http.Request) (*http.Response, error) {
	said := httptest.NewRecorder()
	c.ServeHTTP(said, q)
	return said.Result(), q.Context().Err()
}

// Metadata are documents of the metadata service, by their paths.
type Metadata map[string]string

// MetadataOf says where an instance is, and has the credentials of its role.
func MetadataOf(instance, region string) Metadata {
	return Metadata{
		"instance-id": instance, "placement/region": region, "iam/security-credentials/": "nodes",
		"iam/security-credentials/nodes": `{"Code": "Success", "AccessKeyId": "ASIAREHEARSALONLY000", "SecretAccessKey": "secret", "Token": "token",
			"Expiration": "2099-01-01T00:00:00Z"}`,
	}
}

// Document reads a document. It is a role.Metadata.
func (m Metadata) Document(_ context.Context, path string) ([]byte, error) {
	body, found := m[path]
	if !found {
		return nil, fs.ErrNotExist
	}
	return []byte(body), nil
}
