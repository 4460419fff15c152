package identity_test

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/identity"
)

// canary is in every value of a kubeconfig that may be secret. It looks like what is in tokens and keys.
const canary = "q9Zx41bK0fTw8LmRv7Yc2GhU"

// withCanaries is a kubeconfig whose user is still to be given a credential.
const withCanaries = `apiVersion: v1
kind: Config
current-context: CANARY
preferences: {colors: true}
contexts:
- name: CANARY
  context:
    cluster: CANARY
    user: CANARY
    namespace: CANARY
clusters:
- name: CANARY
  cluster:
    server: https://robot:CANARY@10.0.0.1:6443/CANARY
    tls-server-name: CANARY
    proxy-url: http://robot:CANARY@10.0.0.2:3128
    insecure-skip-tls-verify: false
    extensions: [{name: a, extension: {b: CANARY}}]
users:
- name: CANARY
  user:
    as: CANARY
    as-groups: [CANARY]
    as-user-extra: {a: [CANARY]}
`

// credentials are ways to prove an identity. The last two are faults by themselves.
var credentials = []string{
	"    token: CANARY\n",
	"    client-certificate-data: KEY\n    client-key-data: KEY\n",
	`    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: /usr/bin/aws
      args: [--token, CANARY]
      env: [{name: TOKEN, value: CANARY}]
      installHint: CANARY
      interactiveMode: Never
      provideClusterInfo: true
`,
	"    tokenFile: /etc/kubernetes/CANARY\n    username: CANARY\n    password: CANARY\n",
	"    auth-provider:\n      name: CANARY\n      config: {id-token: CANARY}\n",
}

// spoil returns the text with a fault in one of its lines, in several ways.
func spoil(lines []string, i int) (all []string) {
	key, _, _ := strings.Cut(lines[i], ": ")
	for _, line := range []string{"", lines[i] + lines[i], key + ": {CANARY: CANARY}\n", key + ": [CANARY]\n", key + ": 12345\n", key + ": \"CANARY\n", key + ": '%zz://CANARY'\n"} {
		all = append(all, strings.Join(slices.Concat(lines[:i], []string{line}, lines[i+1:]), ""))
	}
	return append(all, strings.Join(lines[:i], "")+lines[i][:len(lines[i])/2])
}

// Each document has one fault.
func TestKubeconfig_FaultShowsNoValue(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte("-----BEGIN PRIVATE KEY-----\n" + canary + "\n-----END PRIVATE KEY-----"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Nobody is asked.
	for _, credential := range credentials {
		lines := strings.SplitAfter(withCanaries+credential, "\n")
		for i := range lines {
			for _, text := range spoil(lines, i) {
				document := strings.NewReplacer("CANARY", canary, "KEY", key).Replace(text)
				said := strings.Join(identity.Describe(ctx, identity.New(identity.Options{Document: []byte(document)})), " ")
				for _, secret := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))[:16], "\n", "\r"} {
					if strings.Contains(said, secret) {
						t.Fatalf("it says %q of\n%s", said, document)
					}
				}
			}
		}
	}
}
