package identity_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

// execUser is a kubeconfig's user with an exec plugin that is called with these words.
func execUser(t *testing.T, line string, env ...string) string {
	t.Helper()
	words := strings.Fields(line)
	exec := map[string]any{"apiVersion": "client.authentication.k8s.io/v1beta1", "command": words[0], "args": words[1:]}
	var variables []map[string]string
	for pair := range slices.Chunk(env, 2) {
		variables = append(variables, map[string]string{"name": pair[0], "value": pair[1]})
	}
	exec["env"] = variables
	text, err := json.Marshal(map[string]any{"exec": exec})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// mint makes tokens: the user is a node of the name, and the rest says how often one was made.
type mint struct {
	life            time.Duration
	made            int
	cluster, region string
	broken          error
}

func (m *mint) token(_ context.Context, cluster, region string) (string, time.Time, error) {
	if m.broken != nil {
		return "", time.Time{}, m.broken
	}
	m.made++
	m.cluster, m.region = cluster, region
	return fmt.Sprintf("system:node:made-%d", m.made), time.Now().Add(m.life), nil
}

// minted returns the kubelet of a kubeconfig with that user, for which the mint makes tokens, and no plugin is run.
func minted(t *testing.T, server *apiServer, m *mint, user string) *identity.Kubelet {
	t.Helper()
	path := place(t, filepath.Join(t.TempDir(), "kubeconfig"), []byte(server.kubeconfig(user)))
	return identity.New(identity.Options{Kubeconfig: path, ClientOptions: identity.ClientOptions{Token: m.token}})
}

const eksPlugin = "aws eks get-token --cluster-name production --region eu-central-1"

func TestToken_IsMadeInPlaceOfAnExecPluginForEKS(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	for line, test := range map[string]struct {
		env    []string
		region string
	}{
		eksPlugin: {nil, "eu-central-1"},
		"/usr/local/bin/aws --region=eu-west-1 eks get-token --cluster-name=production --output json": {nil, "eu-west-1"},
		"/usr/bin/aws-iam-authenticator token -i production --region us-east-1":                       {nil, "us-east-1"},
		"aws-iam-authenticator token --cluster-id production":                                         {nil, ""},
		"aws eks get-token --cluster-name production":                                                 {[]string{"AWS_REGION", "ap-south-1"}, "ap-south-1"},
		"aws eks get-token --cluster-name=production":                                                 {[]string{"AWS_REGION", "ap-south-1", "AWS_DEFAULT_REGION", "ap-east-1"}, "ap-south-1"},
		"aws  eks  get-token --cluster-name=production":                                               {[]string{"AWS_DEFAULT_REGION", "ap-east-1"}, "ap-east-1"},
	} {
		t.Run(line, func(t *testing.T) {
			m := &mint{life: 14 * time.Minute}
			id := identityOf(t, minted(t, server, m, execUser(t, line, test.env...)))
			if id.Node != "made-1" || m.cluster != "production" || m.region != test.region {
				t.Errorf("node %s, by a token for cluster %q in region %q", id.Node, m.cluster, m.region)
			}
			if !strings.Contains(id.Credential, "token for the EKS cluster production") {
				t.Errorf("what proves the identity is told as %s", id.Credential)
			}
			readNode(t, id)
		})
	}
}

func TestToken_ReplacesNoPluginThatDoesMore(t *testing.T) {
	t.Parallel()
	server := startAPIServer(t)
	for line, says := range map[string]string{
		"gke-gcloud-auth-plugin":                                       "gke-gcloud-auth-plugin",
		"aws sts get-caller-identity":                                  "none of those",
		"aws eks get-token --region eu-west-1":                         "for no cluster",
		eksPlugin + " --role-arn arn:aws:iam::123456789012:role/other": "--role-arn",
		"aws-iam-authenticator token -i production -r other":           "-r",
		eksPlugin + " --profile=admin":                                 "--profile",
		eksPlugin + " --endpoint-url https://sts.example":              "--endpoint-url",
	} {
		_, err := minted(t, server, &mint{}, execUser(t, line)).Identity(t.Context())
		wantError(t, err, says)
	}
}

func TestPlugin_IsRunBelowTheRootOfTheHost(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the root directory needs root")
	}
	built := filepath.Join(t.TempDir(), "below")
	build := exec.Command("go", "build", "-o", built, "./testdata/below")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, output)
	}
	program, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/usr/bin:/bin")
	t.Setenv("SSL_CERT_FILE", "/nowhere")
	for name, command := range map[string]string{
		"by its path":           "/usr/bin/aws-iam-authenticator",
		"by a link":             "/opt/authenticator",
		"by its name":           "aws-iam-authenticator",
		"beside the kubeconfig": "./plugin",
	} {
		t.Run(name, func(t *testing.T) {
			server, root := startAPIServer(t), t.TempDir()
			place(t, filepath.Join(root, "/etc/kubernetes/kubelet/kubeconfig"), []byte(server.kubeconfig(execUser(t, command+" token -i production"))))
			for _, at := range []string{"/usr/bin/aws-iam-authenticator", "/etc/kubernetes/kubelet/plugin"} {
				place(t, filepath.Join(root, at), program)
				if err := os.Chmod(filepath.Join(root, at), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(root, "opt"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/usr/bin/aws-iam-authenticator", filepath.Join(root, "opt", "authenticator")); err != nil {
				t.Fatal(err)
			}
			id := identityOf(t, identity.New(identity.Options{Root: root}))
			if id.Node != "below" || !strings.HasSuffix(id.Credential, filepath.Base(command)) {
				t.Errorf("identity %+v", id)
			}
		})
	}
}

// use makes a request with the identity.
func use(t *testing.T, id identity.Identity) error {
	t.Helper()
	return id.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + id.Node).Do(t.Context()).Error()
}

// either returns the kubelet of a kubeconfig whose plugin is a script, called aws, with these arguments, for which the mint
// makes tokens where it can; and what the plugin has been called with so far. The plugin's user is the node "plugged".
func either(t *testing.T, server *apiServer, m *mint, arguments string, env ...string) (k *identity.Kubelet, calls func() string) {
	t.Helper()
	dir := t.TempDir()
	command, called := filepath.Join(dir, "aws"), filepath.Join(dir, "called")
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%s\necho '%s'\n", called,
		`{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "system:node:plugged"}}`)
	if err := os.WriteFile(command, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	path := place(t, filepath.Join(dir, "kubeconfig"), []byte(server.kubeconfig(execUser(t, command+" "+arguments, env...))))
	return identity.New(identity.Options{Kubeconfig: path, ClientOptions: identity.ClientOptions{Token: m.token, Fallback: true}}), func() string {
		text, _ := os.ReadFile(called) // It need not be there.
		return string(text)
	}
}

const getToken = "eks get-token --cluster-name production --region eu-central-1"

func TestToken_PluginIsRunWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	const made = "a token for the EKS cluster production, of the instance's role,"
	for name, c := range map[string]struct {
		arguments        string
		env              []string
		broken           error
		refused          bool
		node, credential string
	}{
		"the token can be made": {getToken, nil, nil, false, "made-1", made},
		"another role":          {getToken + " --role-arn arn:aws:iam::123456789012:role/other", nil, nil, false, "plugged", "the exec plugin aws"},
		"another profile":       {getToken + " --profile admin", nil, nil, false, "plugged", "the exec plugin aws"},
		"another service":       {"sts get-something", nil, nil, false, "plugged", "the exec plugin aws"},
		"a variable":            {getToken, []string{"AWS_PROFILE", "admin"}, nil, false, "plugged", "the exec plugin aws"},
		"no token can be made":  {getToken, nil, errors.New("the instance has no IAM role"), false, "plugged", "the exec plugin aws (the instance has no IAM role)"},
		"the token is refused":  {getToken, nil, nil, true, "plugged", "the exec plugin aws"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startAPIServer(t)
			if c.refused {
				server.bar("system:node:made-1")
			}
			k, calls := either(t, server, &mint{life: 14 * time.Minute, broken: c.broken}, c.arguments, c.env...)
			id := identityOf(t, k)
			readNode(t, id)
			want := ""
			if c.node == "plugged" {
				want = c.arguments + "\n"
			}
			if id.Node != c.node || id.Credential != c.credential || calls() != want {
				t.Errorf("identity %+v; the plugin was run with %q", id, calls())
			}
		})
	}
}
