package imds_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"testing"

	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/imds/imdstest"
)

func TestADocumentIsReadAsItIsAndOneThatIsNotThereIsToldFromTrouble(t *testing.T) {
	t.Parallel()
	srv := imdstest.NewServer()
	defer srv.Close()
	source := newSource(t, imds.Options{Endpoint: srv.URL})
	role, err := source.Document(t.Context(), "iam/security-credentials/")
	if err != nil || string(role) != imdstest.Role {
		t.Fatalf("the role is %q, %v", role, err)
	}
	body, err := source.Document(t.Context(), "iam/security-credentials/"+imdstest.Role)
	var credentials struct{ AccessKeyID, SecretAccessKey, Token string }
	if err := errors.Join(err, json.Unmarshal(body, &credentials)); err != nil || credentials.Token == "" {
		t.Errorf("the credentials are %q, %v", body, err)
	}
	if _, err := source.Document(t.Context(), "spot/instance-action"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a document that is not there: %v, want fs.ErrNotExist", err)
	}
	srv.Fault(imdstest.Fault{Kind: imdstest.Status, Status: 500})
	if _, err := source.Document(t.Context(), "instance-id"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a service that fails: %v, want trouble", err)
	}
}
