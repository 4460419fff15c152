package text_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/nth-project/nth/pkg/text"
)

func TestVisible_ShowsWhatCannotBeSeen(t *testing.T) {
	for _, c := range []struct{ name, given, want string }{
		{"nothing", "", ""},
		{"plain", `default/web-0: "8 s" \n`, `default/web-0: "8 s" \n`},
		{"other scripts", "Größe 大きさ 🚀", "Größe 大きさ 🚀"},
		{"line breaks", "web\nnode is drained\r\n\tyes", `web\nnode is drained\r\n\tyes`},
		{"terminal escapes", "\x1b[2J\x1b]0;title\a\u009b1m\x7f", `\x1b[2J\x1b]0;title\a\u009b1m\x7f`},
		{"direction of writing", "a\u202eb\u2066c\u200fd", `a\u202eb\u2066c\u200fd`},
		{"separators", "a\u2028b\u2029c\u00a0d\ufeffe", `a\u2028b\u2029c\u00a0d\ufeffe`},
		{"letters that nobody sees", "web\u3164\u115f\uffa0\u034f-0", `web\u3164\u115f\uffa0\u034f-0`},
		{"not UTF-8", "a\xff\xc3(b", `a\xff\xc3(b`},
		{"the replacement character itself", "a\ufffdb", "a\ufffdb"},
	} {
		if got := text.Visible(c.given, text.Line); got != c.want {
			t.Errorf("%s: Visible(%q) = %q, want %q", c.name, c.given, got, c.want)
		}
	}
}

func TestVisible_BoundsTheLength(t *testing.T) {
	for _, c := range []struct{ given, want string }{
		{"0123456789", "0123456789"},
		{"0123456789a", "0123456…"},
		{"012345678ä", "0123456…"},
		{"012345ää", "012345ää"},
		{"0123456\n\n", `0123456…`},
		{"012345\n\n", `012345\n\n`},
		{"\x00\x00\x00", `\x00…`},
	} {
		if got := text.Visible(c.given, 10); got != c.want || len(got) > 10 {
			t.Errorf("Visible(%q, 10) = %q, want %q", c.given, got, c.want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\x1b[1m\u202e\xff…")
	f.Add(strings.Repeat("ä\n", 200))
	f.Fuzz(func(t *testing.T, given string) {
		got := text.Visible(given, text.Name)
		if len(got) > text.Name || !utf8.ValidString(got) {
			t.Fatalf("%d bytes, %q", len(got), got)
		}
		if at := strings.IndexFunc(got, func(r rune) bool { return r != utf8.RuneError && !unicode.IsPrint(r) }); at >= 0 {
			t.Fatalf("%q at %d cannot be seen", got, at)
		}
		if again := text.Visible(got, text.Name); again != got {
			t.Fatalf("%q became %q", got, again)
		}
	})
}

// noise is the same each time, as a secret may by chance look like none.
func noise(n int) []byte {
	random := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	return random
}

func TestRedact_TakesSecretsOut(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.NewChaCha8([32]byte{}))
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	armoured := strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	long := base64.StdEncoding.EncodeToString(noise(300))
	lines := long[:64] + "\n" + long[64:128] + "\n" + long[128:192]
	for name, c := range map[string]struct{ given, want string }{
		"headers as Go prints them":     {`map[Authorization:[Bearer hunter2] Accept:[*/*]]`, `map[Authorization:[…] Accept:[*/*]]`},
		"headers as Python prints them": {`{'Authorization': b'Basic hunter2'}`, `{'Authorization': b'…'}`},
		"headers in JSON":               {`{"Proxy-Authorization":["Basic hunter2"]}`, `{"Proxy-Authorization":["…"]}`},
		"a URL with a blank in it":      {`parse "http://robot:hunter2 x@proxy.test:3128": net/url: invalid userinfo`, `parse "http://…@proxy.test:3128": net/url: invalid userinfo`},
		"a key":                         {"cannot read " + armoured + " here", "cannot read … here"},
		"a key in one line":             {"cannot read " + strings.ReplaceAll(armoured, "\n", `\n`) + " here", "cannot read … here"},
		"a key without its end":         {"cannot read " + armoured[:120], "cannot read …"},
		"a key without its beginning":   {armoured[40:] + " is odd", "… is odd"},
		"two keys":                      {armoured + " and " + armoured + "!", "… and …!"},
		"base64 in lines":               {"is " + lines + " base64?", "is … …/… …/… base64?"},
		"base64 of 16":                  {"the token q9Zx41bK0fTw8LmR is odd", "the token … is odd"},
		"base64url with padding":        {"x=" + base64.URLEncoding.EncodeToString(noise(40)), "x=…"},
		"a name of a file":              {"open /etc/kubernetes/pki/q9Zx41bK0fTw8LmR: no such file", "open /etc/kubernetes/pki/…: no such file"},
		"Slack's":                       {"with xoxb-1234-5678-abcd, says", "with …, says"},
		"GitHub's":                      {"with ghp_abcdef says", "with … says"},
		"a JSON Web Token":              {"with eyJhbGciOi.eyJzdWIi.c2ln says", "with … says"},
		"EKS's":                         {"Bearer k8s-aws-v1.abc says", "Bearer … says"},
		"a header":                      {"Authorization: Basic cm9ib3Q6aHVudGVy (and more)", "Authorization: … (and more)"},
		"a proxy's user":                {"cannot reach https://robot:hun/ter2@proxy.test:3128 now", "cannot reach https://…@proxy.test:3128 now"},
		"a user alone":                  {"cannot reach http://robot@proxy.test now", "cannot reach http://…@proxy.test now"},
		"a user without a scheme":       {`parse "robot:hunter2@proxy.test:3128": first path segment`, `parse "…@proxy.test:3128": first path segment`},
		"a variable":                    {"AWS_SECRET_ACCESS_KEY=hunter2; is odd", "AWS_SECRET_ACCESS_KEY=…; is odd"},
		"JSON":                          {`{"Token": "hunter2", "Code": "Success"}`, `{"Token": "…", "Code": "Success"}`},
		"YAML":                          {"password: hunter2 found", "password: … found"},
		"Go's quotes":                   {`flag password="hunter2 of me" is odd`, `flag password="…" is odd`},
		"an INI file":                   {"aws_secret_access_key = hunter2 is odd", "aws_secret_access_key = … is odd"},
		"YAML in quotes":                {`'password': 'hunter2 "of" me', a`, `'password': '…', a`},
		"a block of YAML":               {"password: |-\n  hunter2", "password: |- …"},
		"a phrase in JSON":              {`{"password" : "hunter2 \"of\" me"}`, `{"password" : "…"}`},
		"Go's map":                      {"map[password:hunter2]", "map[password:…"},
		"another scheme of a header":    {"Authorization: Token hunter2 (and more)", "Authorization: … (and more)"},
		"cookies":                       {"Cookie: a=1; b=hunter2 (and more)", "Cookie: … (and more)"},
		"a query":                       {"?X-Amz-Security-Token=hunter2&a=b", "?X-Amz-Security-Token=…&a=b"},
		"a flag":                        {"running aws --session-token hunter2 --region a", "running aws --session-token … --region a"},
		"a flag in a list":              {`args: ["-token", "hunter2", "a"]`, `args: ["-token", "…", "a"]`},
		"a flag in a JSON list":         {`["--token","hunter2"]`, `["--token","…"]`},
		"a flag with a phrase":          {`--password "hunter2 of me" x`, `--password "…" x`},
		"a passphrase":                  {"passphrase: hunter2 found", "passphrase: … found"},
		"a short name":                  {"Server=a;Uid=b;Pwd=hunter2;", "Server=a;Uid=b;Pwd=…;"},
		"Ruby's map":                    {`{client_secret => "hunter2"}`, `{client_secret => "…"}`},
		"JSON in a text":                {`"{\"token\": \"hunter2 \\\"of\\\" me\", \"a\": 1}"`, `"{\"token\": \"…\", \"a\": 1}"`},
		"Slack's webhook":               {"Post https://hooks.slack.com/services/T0/B0/hunter2: EOF", "Post https://hooks.slack.com/… EOF"},
		"Teams's webhook":               {`Post "https://a.webhook.office.com/webhookb2/hunter2": EOF`, `Post "https://a.webhook.office.com/…": EOF`},
		"Discord's webhook":             {"https://discord.com/api/webhooks/1/hunter2 says", "https://discord.com/api/webhooks/… says"},
		"several lines":                 {"Unable to\n\n\tread\x00it", "Unable to read\x00it"},
	} {
		t.Run(name, func(t *testing.T) {
			got := text.Redact(c.given)
			if got != c.want {
				t.Errorf("Redact(%q)\nis   %q\nwant %q", c.given, got, c.want)
			}
			if again := text.Redact(got); again != got {
				t.Errorf("redacted again it is %q, and was %q", again, got)
			}
		})
	}
}

func TestRedact_LeavesOtherTextAlone(t *testing.T) {
	for _, s := range []string{
		"open /var/run/secrets/eks.amazonaws.com/serviceaccount/token: permission denied",
		"proxyconnect tcp: dial tcp: lookup nginx-proxy: no such host",
		"fork/exec /opt/linux-plugin: exec format error",
		"An error occurred (AccessDenied) when calling the AssumeRole operation: User: arn:aws:sts::123456789012:assumed-role/eksNodeRole/i-0a1b2c3d4e5f6a7b8 is not authorized",
		"An error occurred (InvalidClientTokenId) when calling the GetCallerIdentity operation: The security token included in the request is invalid.",
		`Could not connect to the endpoint URL: "https://sts.eu-central-1.amazonaws.com/"`,
		"ImportError: /usr/local/aws-cli/v2/current/dist/libpython3.12.so.1.0: cannot open shared object file",
		`File "/usr/lib/python3.11/site-packages/botocore/credentials.py", line 2023, in load_credentials_from_container`,
		"level=fatal time=2026-01-31T12:00:00Z msg=could-not-get-token cluster=production-eu-central-1-cluster-2",
		"dial tcp: lookup ip-10-0-12-34.eu-central-1.compute.internal on 10.0.0.2:53: no such host",
		"asking the API server https://0A1B2C3D4E5F60718293A4B5C6D7E8F9.gr7.us-west-2.eks.amazonaws.com who owns the credential in /var/lib/kubelet/kubeconfig: Unauthorized",
		"getting a token for the API server: the exec plugin aws-iam-authenticator failed with exit code 1",
		"open /var/lib/kubelet/pki/kubelet-client-2026-01-31-12-00-00.pem: no such file or directory",
		"tls: failed to verify certificate: x509: certificate signed by unknown authority",
		`the credential belongs to the user "system:serviceaccount:kube-system:node", but nth needs the credential of a node (system:node:<name>)`,
	} {
		if got := text.Redact(s); got != s {
			t.Errorf("Redact(%q)\nis %q", s, got)
		}
	}
}

func TestHasUserInHost_OfEveryDelimiter(t *testing.T) {
	for address, want := range map[string]bool{
		"http://me:a@proxy.test:3128": false, "http://proxy.test/a": false, "http://me:1/b@proxy.test": true, "http://me?a@proxy.test": true, "http://me#a@proxy.test": true,
	} {
		parsed, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := text.HasUserInHost(parsed); got != want {
			t.Errorf("of %s: %t", address, got)
		}
	}
}

func TestRedacted_KeepsTheCauses(t *testing.T) {
	err := text.Redacted(&fs.PathError{Op: "open", Path: "/q9Zx41bK0fTw8LmR", Err: fs.ErrNotExist})
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "open /…: file does not exist" {
		t.Errorf("it is %v", err)
	}
	if text.Redacted(nil) != nil {
		t.Error("nil is an error")
	}
}
