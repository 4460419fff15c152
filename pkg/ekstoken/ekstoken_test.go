package ekstoken_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/ekstoken"
	"github.com/nth-project/nth/pkg/ekstoken/ekstokentest"
)

// The role's credentials.
const (
	accessKey = "ASIAEXAMPLE"
	secretKey = "a secret/key+of EXAMPLE"
	session   = "a session/token+of EXAMPLE=="
)

// instance is a metadata service: documents by their paths, and how often each was read.
type instance struct {
	documents map[string]string
	reads     map[string]int
	down      error
}

func newInstance() *instance {
	credentials := fmt.Sprintf(`{"Code": "Success", "AccessKeyId": %q, "SecretAccessKey": %q, "Token": %q, "Expiration": %q}`,
		accessKey, secretKey, session, time.Now().Add(6*time.Hour).UTC().Format(time.RFC3339))
	return &instance{reads: map[string]int{}, documents: map[string]string{
		"iam/security-credentials/":     "node",
		"iam/security-credentials/node": credentials,
		"placement/region":              "eu-central-1\n",
		"services/domain":               "amazonaws.com",
	}}
}

func (i *instance) read(_ context.Context, path string) ([]byte, error) {
	i.reads[path]++
	if i.down != nil {
		return nil, i.down
	}
	text, found := i.documents[path]
	if !found {
		return nil, fmt.Errorf("reading %q: %w", path, fs.ErrNotExist)
	}
	return []byte(text), nil
}

func secret(key string) (string, bool) { return secretKey, key == accessKey }

func TestToken_IsBelievedByACluster(t *testing.T) {
	for name, test := range map[string]struct{ region, domain, want string }{
		"the instance's region": {"", "amazonaws.com", "eu-central-1"},
		"another region":        {"us-gov-west-1", "amazonaws.com", "us-gov-west-1"},
		"another part of AWS":   {"cn-north-1", "amazonaws.com.cn", "cn-north-1"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInstance()
			i.documents["services/domain"] = test.domain
			token, expires, err := ekstoken.New(i.read, "").Token(t.Context(), "production", test.region)
			if err != nil {
				t.Fatal(err)
			}
			caller, err := ekstokentest.Verify(token, "production", time.Now(), secret)
			if want := (ekstokentest.Caller{AccessKey: accessKey, Region: test.want, Session: session}); err != nil || caller != want {
				t.Errorf("the caller is %+v, %v", caller, err)
			}
			if left := time.Until(expires); left > 14*time.Minute || left < 12*time.Minute {
				t.Errorf("it is good for %s", left)
			}
		})
	}
}

func TestToken_OfCredentialsIsBelieved(t *testing.T) {
	account := aws.Config{Region: "eu-central-1", Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey, SessionToken: session}, nil
	})}
	for region, want := range map[string]string{"": "eu-central-1", "us-east-1": "us-east-1", "cn-north-1": "cn-north-1"} {
		token, _, err := ekstoken.Of(account).Token(t.Context(), "production", region)
		if err != nil {
			t.Fatal(err)
		}
		caller, err := ekstokentest.Verify(token, "production", time.Now(), secret)
		if want := (ekstokentest.Caller{AccessKey: accessKey, Region: want, Session: session}); err != nil || caller != want {
			t.Errorf("in the region %q the caller is %+v, %v", region, caller, err)
		}
	}
	account.Region = ""
	if token, _, err := ekstoken.Of(account).Token(t.Context(), "production", ""); err == nil {
		t.Errorf("without a region there is the token %s", token)
	}
}

func TestToken_IsForOneClusterAndForItsTime(t *testing.T) {
	token, expires, err := ekstoken.New(newInstance().read, "").Token(t.Context(), "production", "")
	if err != nil {
		t.Fatal(err)
	}
	other := func(string) (string, bool) { return "another", true }
	for name, verify := range map[string]func() (ekstokentest.Caller, error){
		"another cluster": func() (ekstokentest.Caller, error) { return ekstokentest.Verify(token, "staging", time.Now(), secret) },
		"another key": func() (ekstokentest.Caller, error) {
			return ekstokentest.Verify(token, "production", time.Now(), other)
		},
		"too late": func() (ekstokentest.Caller, error) {
			return ekstokentest.Verify(token, "production", expires.Add(2*time.Minute), secret)
		},
		"torn": func() (ekstokentest.Caller, error) {
			return ekstokentest.Verify(token[:len(token)-8], "production", time.Now(), secret)
		},
	} {
		if caller, err := verify(); err == nil {
			t.Errorf("%s: it is believed to be from %+v", name, caller)
		}
	}
}

func TestToken_DoesNotOutliveItsCredentials(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{6 * time.Hour: 14 * time.Minute, 10 * time.Minute: 10 * time.Minute} {
		i := newInstance()
		i.documents["iam/security-credentials/node"] = fmt.Sprintf(
			`{"Code": "Success", "AccessKeyId": %q, "SecretAccessKey": %q, "Token": %q, "Expiration": %q}`,
			accessKey, secretKey, session, time.Now().Add(left).UTC().Format(time.RFC3339Nano))
		began := time.Now()
		_, expires, err := ekstoken.New(i.read, "").Token(t.Context(), "production", "")
		if got := expires.Sub(began); err != nil || got.Round(time.Minute) != want || left == want && expires.After(began.Add(left)) {
			t.Errorf("of credentials with %s left, the token is good for %s, %v", left, got, err)
		}
	}
}

func TestToken_CredentialsAreReadOnce(t *testing.T) {
	i := newInstance()
	source := ekstoken.New(i.read, "")
	if len(i.reads) > 0 {
		t.Errorf("before the first token, this was read: %v", i.reads)
	}
	for range 3 {
		if _, _, err := source.Token(t.Context(), "production", ""); err != nil {
			t.Fatal(err)
		}
	}
	if reads := i.reads["iam/security-credentials/node"]; reads != 1 {
		t.Errorf("the credentials were read %d times", reads)
	}
}

func TestToken_NeedsTheMetadataServiceOnce(t *testing.T) {
	for name, test := range map[string]struct{ own, asked, want string }{
		"it has told the region":      {"", "", "eu-central-1"},
		"the region was known before": {"eu-west-1", "", "eu-west-1"},
		"the cluster's is known":      {"eu-west-1", "us-east-1", "us-east-1"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInstance()
			source := ekstoken.New(i.read, test.own)
			for _, down := range []error{nil, errors.New("connection refused")} {
				i.down = down
				token, _, err := source.Token(t.Context(), "production", test.asked)
				if err != nil {
					t.Fatalf("while the metadata service says %v: %v", down, err)
				}
				if caller, err := ekstokentest.Verify(token, "production", time.Now(), secret); err != nil || caller.Region != test.want {
					t.Errorf("the caller is %+v, %v", caller, err)
				}
			}
			if asked := i.reads["placement/region"] > 0; asked != (test.own+test.asked == "") {
				t.Errorf("the metadata service was asked for the region: %t", asked)
			}
		})
	}
}

func TestToken_NeedsARole(t *testing.T) {
	i := newInstance()
	delete(i.documents, "iam/security-credentials/")
	_, _, err := ekstoken.New(i.read, "").Token(t.Context(), "production", "")
	if err == nil || !strings.Contains(err.Error(), "the instance has no IAM role") {
		t.Errorf("error: %v", err)
	}
}

func TestToken_FaultOfTheMetadataServicePasses(t *testing.T) {
	i := newInstance()
	i.down = errors.New("connection refused")
	source := ekstoken.New(i.read, "")
	if _, _, err := source.Token(t.Context(), "production", ""); !errors.Is(err, i.down) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error: %v", err)
	}
	i.down = nil
	if _, _, err := source.Token(t.Context(), "production", ""); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}
