package asg_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/asg"
)

func TestTheDocumentedPolicyAllowsWhatIsNeededAndNothingElse(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "```json\n")
	document, _, closed := strings.Cut(after, "```")
	if !found || !closed {
		t.Fatal("there is no policy on the page")
	}
	var policy struct {
		Version   string
		Statement []struct {
			Effect   string
			Action   []string
			Resource string
		}
	}
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&policy); err != nil {
		t.Fatalf("reading the policy: %v", err)
	}
	var allowed []string
	for _, s := range policy.Statement {
		if s.Effect != "Allow" || s.Resource == "" {
			t.Errorf("the statement %+v does not allow anything", s)
		}
		allowed = append(allowed, s.Action...)
		looks := strings.HasPrefix(s.Action[0], "autoscaling:Describe")
		if everything := s.Resource == "*"; everything != looks {
			t.Errorf("the resource of %v is %q", s.Action, s.Resource)
		}
	}
	needed := asg.Permissions()
	slices.Sort(allowed)
	slices.Sort(needed)
	if policy.Version != "2012-10-17" || !slices.Equal(allowed, needed) {
		t.Errorf("version %s allows %v, want %v", policy.Version, allowed, needed)
	}
}
