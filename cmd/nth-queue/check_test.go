package main_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	queue "github.com/nth-project/nth/cmd/nth-queue"
	"github.com/nth-project/nth/pkg/asg/asgtest"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/sqs/sqstest"
)

// A bench is what "nth-queue check" looks at in AWS, without a cluster.
type bench struct {
	*sqstest.Server
	groups   *asgtest.Service
	ec2      *ec2test.Service
	settings string
	url      string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{Server: sqstest.NewServer(), groups: asgtest.New(), ec2: &ec2test.Service{}, settings: filepath.Join(t.TempDir(), "nth-queue.toml")}
	t.Cleanup(b.Close)
	services := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" {
			b.ServeHTTP(w, r)
		} else if err := r.ParseForm(); err == nil && strings.HasPrefix(r.PostForm.Get("Action"), "DescribeInstance") {
			b.ec2.ServeHTTP(w, r)
		} else {
			b.groups.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(services.Close)
	b.url = services.URL
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE0000001", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/absent", "AWS_SHARED_CREDENTIALS_FILE": "/absent",
		"AWS_REGION": "eu-central-1", "AWS_ENDPOINT_URL": b.url, "AWS_DEFAULT_REGION": "", "AWS_PROFILE": "", "CREDENTIALS_DIRECTORY": "",
	} {
		t.Setenv(name, value)
	}
	b.set(t, "")
	return b
}

// set writes the settings, with more tables at their end.
func (b *bench) set(t *testing.T, more string) {
	t.Helper()
	const form = "[kubernetes]\nkubeconfig = \"/absent\"\n[queue]\nurl = %q\n%s"
	if err := os.WriteFile(b.settings, fmt.Appendf(nil, form, b.QueueURL(), more), 0o600); err != nil {
		t.Fatal(err)
	}
}

// check runs "nth-queue check", and fails the test unless every line is a finding and the status goes with them.
func (b *bench) check(t *testing.T, flags ...string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	status := queue.Run(t.Context(), append([]string{"check", "--config", b.settings}, flags...), &out, &stderr)
	finding, want := regexp.MustCompile(`^(ok  |warn|fail)  [a-z]+ *  \S.*\n$`), 0
	for line := range strings.Lines(out.String()) {
		if !finding.MatchString(line) {
			t.Errorf("this line is no finding: %q", line)
		}
		if strings.HasPrefix(line, "fail") {
			want = 1
		}
	}
	if status != want || stderr.Len() > 0 {
		t.Errorf("status %d, want %d; standard error has %q; it said\n%s", status, want, &stderr, &out)
	}
	return out.String()
}

// mustSay fails the test unless each pattern matches a whole line.
func mustSay(t *testing.T, said string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile(`(?m)^` + pattern + `$`).MatchString(said) {
			t.Errorf("there is no line %q in\n%s", pattern, said)
		}
	}
}

func TestCheck_FindsAGoodQueueGoodAndReceivesNothing(t *testing.T) {
	b := newBench(t)
	b.Send("a message")
	mustSay(t, b.check(t),
		`ok    aws         eu-central-1, with the access key AKIDEXAMPLE0000001 from EnvConfigCredentials`,
		`ok    queue       1 message waiting, 0 in flight`,
		`ok    right       sqs:ReceiveMessage`,
		`ok    right       sqs:ChangeMessageVisibility`,
		`ok    right       sqs:DeleteMessage`,
		`fail  identity    .*/absent.*`,
		`ok    right       ec2:DescribeInstances`,
		`ok    right       ec2:DescribeInstanceStatus`,
		`ok    hook        not tried: .*`,
		`ok    webhook     no webhook configured`,
	)
	if b.Visible() != 1 {
		t.Error("the message cannot be seen any more")
	}
}

func TestCheck_ContinuesWithAsMuchAsTheQueueAllows(t *testing.T) {
	b := newBench(t)
	b.Deny("GetQueueAttributes", "DeleteMessageBatch")
	mustSay(t, b.check(t), `warn  queue       .* does not allow sqs:GetQueueAttributes; .*`, `ok    right       sqs:ReceiveMessage`, `fail  right       sqs:DeleteMessage: refused; .*`)
	b.Allow()
	b.Fail(sqstest.Fault{Action: "GetQueueAttributes", Status: 400, Code: "QueueDoesNotExist"})
	said := b.check(t)
	mustSay(t, said, `fail  queue       asking for the attributes of the queue .*`, `ok    right       ec2:DescribeInstances`)
	if strings.Contains(said, "right       sqs:") {
		t.Errorf("it tries rights to a queue that does not exist:\n%s", said)
	}
}

func TestCheck_AsksOfEC2WhatTheSettingsNeed(t *testing.T) {
	const tag = "[fleet]\nmanaged_tag = \"managed\"\n"
	for name, row := range map[string]struct {
		settings string
		want     []string
	}{
		"by default": {"", []string{
			`warn  right       ec2:DescribeInstances: refused; late stops and the end of a Capacity Block drain no node, .*`,
			`warn  right       ec2:DescribeInstanceStatus: refused; nth-queue sees neither scheduled maintenance nor .*`,
		}},
		"for a tag": {tag, []string{
			`warn  right       ec2:DescribeInstanceStatus: refused; .*`,
			`fail  right       ec2:DescribeInstances: refused; .*`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.ec2.Deny()
			b.set(t, row.settings)
			said := b.check(t)
			mustSay(t, said, row.want...)
			if asked := strings.Count(said, ":Describe"); asked != len(row.want) {
				t.Errorf("it has tried %d rights, want %d:\n%s", asked, len(row.want), said)
			}
		})
	}
}

func TestCheck_SaysThatCredentialsOrARegionAreMissing(t *testing.T) {
	for variable, want := range map[string]string{
		"AWS_ACCESS_KEY_ID": `fail  aws         looking for credentials: .*`, "AWS_REGION": `fail  aws         neither .*: set AWS_REGION`,
	} {
		b := newBench(t)
		t.Setenv(variable, "")
		said := b.check(t)
		mustSay(t, said, want, `fail  identity    .*`)
		if strings.Contains(said, "  queue  ") || strings.Contains(said, "autoscaling:") {
			t.Errorf("it asks AWS all the same:\n%s", said)
		}
	}
}

func TestCheck_EndsWith78ForSettingsThatCannotRun(t *testing.T) {
	b := newBench(t)
	for settings, want := range map[string]string{
		"[queue]\nurl = \"" + b.QueueURL() + "\"\n[fleet]\nmax_draining = -1\n": `fleet\.max_draining = `,
		"dry_run = true\n": `the setting queue\.url must be set`,
	} {
		if err := os.WriteFile(b.settings, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range [][]string{{"check"}, {"config", "--check"}} {
			var out bytes.Buffer
			if status := queue.Run(t.Context(), append(command, "--config", b.settings), &out, &out); status != 78 || !regexp.MustCompile(want).MatchString(out.String()) {
				t.Errorf("%v: status %d, want 78:\n%s", command, status, &out)
			}
		}
	}
}
