package main_test

import (
	"context"
	"fmt"
	"io/fs"
	"testing"
	"time"

	nth "github.com/nth-project/nth/cmd/nth"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/ekstoken/ekstokentest"
)

func TestTheRegionOfATokenIsThatOfThePluginOrTheEnvironment(t *testing.T) {
	documents := map[string]string{
		"iam/security-credentials/":     "node",
		"iam/security-credentials/node": `{"Code": "Success", "AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "secret", "Token": "session", "Expiration": "2100-01-01T00:00:00Z"}`,
	}
	metadata := func(_ context.Context, path string) ([]byte, error) {
		text, found := documents[path]
		if !found {
			return nil, fmt.Errorf("reading %s: %w", path, fs.ErrNotExist)
		}
		return []byte(text), nil
	}
	secret := func(string) (string, bool) { return "secret", true }
	for name, test := range map[string]struct {
		plugin      string
		environment map[string]string
		want        string // "" is that it cannot be known, as the metadata service does not tell it
	}{
		"the plugin's":      {"us-east-1", map[string]string{"AWS_REGION": "eu-west-2"}, "us-east-1"},
		"the environment's": {"", map[string]string{"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-2"},
		"the other one":     {"", map[string]string{"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"},
		"nobody's":          {"", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
				t.Setenv(variable, test.environment[variable])
			}
			token, err := nth.Token(t.Context(), config.Default(), metadata, "production", test.plugin)
			if test.want == "" {
				if err == nil {
					t.Errorf("the token is %s", token)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if caller, err := ekstokentest.Verify(token, "production", time.Now(), secret); err != nil || caller.Region != test.want {
				t.Errorf("the caller is %+v, %v", caller, err)
			}
		})
	}
}
